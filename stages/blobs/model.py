"""The starting model on a machine that has not got it: its files are fetched before the stage starts.

A stage reads `model.path` and knows nothing of this: the welcome that it is given names the directory in this machine's cache. That the
files are those of the run is proven later, by the digest of version 0.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from msgspec.structs import replace

from broker.keys import ClientKeys
from schemas.config.pipeline import PipelineConfig
from schemas.messages import Welcome
from stages.blobs.arrivals import Wanted, bring, nobody_serves, own_depot
from stages.blobs.outline import WEIGHTS

log = structlog.get_logger(__name__)


def model_at_hand(welcome: Welcome, keys: ClientKeys | None) -> Welcome:
    """The welcome, its `model.path` one of this machine; all files. Raises BlobError; NotServedError where nobody has them so far."""
    return _at_hand(welcome, keys, weights=True)


def tokenizer_at_hand(welcome: Welcome, keys: ClientKeys | None) -> Welcome:
    """The same without the weights, for stages that read texts only."""
    return _at_hand(welcome, keys, weights=False)


def _at_hand(welcome: Welcome, keys: ClientKeys | None, *, weights: bool) -> Welcome:
    config = PipelineConfig.model_validate(welcome.config)
    place = config.model.path
    if Path(place).is_dir():
        return welcome
    if not welcome.sources:
        raise nobody_serves(f"model.path {place}")
    depot = own_depot(config.host.cache_bytes, keys)
    try:
        files = depot.fetcher.files(place, welcome.sources)
        wanted = tuple(info for info in files if weights or not info.name.endswith(WEIGHTS))
        # Held for the life of the process: a restarted trainer reads the tokenizer's files again at each version.
        held = bring(depot, Wanted(place=place, files=wanted, sources=welcome.sources))
    finally:
        depot.fetcher.close()
    log.info("model fetched", place=place, directory=str(held.path), bytes=held.bytes, seconds=round(held.seconds, 3))
    return replace(welcome, config={**welcome.config, "model": {**welcome.config["model"], "path": str(held.path)}})
