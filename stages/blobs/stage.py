"""A blob server as a process of a run: for a machine whose files others need and on which no host agent runs.

Leases nothing. Shares the run's versions and the starting model where they are on this machine, and what its cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog

from broker.keys import client_keys
from schemas.codec import Frame
from schemas.config.pipeline import PipelineConfig
from schemas.edges import Role
from schemas.errors import ConfigError, InvariantError
from schemas.messages import BrokerMessage, Peers, Welcome
from stages.blobs.cache import Cache, default_directory
from stages.blobs.serving import Serving, serve
from stages.service.stage import Delivery, Link, Ready

log = structlog.get_logger(__name__)


class BlobStage:
    """See `stages.service.stage.Stage`."""

    role = Role.OBSERVER

    def __init__(self, broker: str, listen: str, shared: Sequence[Path] = ()) -> None:
        self._broker, self._listen, self._shared = broker, listen, shared
        self._serving: Serving | None = None

    def start(self, welcome: Welcome, link: Link) -> None:
        """Raises ConfigError where there is no address to serve at."""
        config = PipelineConfig.model_validate(welcome.config)
        shared = [*self._shared, Path(welcome.run_directory) / "versions", Path(config.model.path)]
        cache = Cache(default_directory(), config.host.cache_bytes)
        self._serving = serve(self._broker, cache, shared, client_keys(), self._listen)
        if self._serving is None:
            raise ConfigError(f"only this machine can reach the broker at {self._broker}, so nobody else can fetch; or name --listen")
        log.info("serving", endpoint=self._serving.endpoint, shared=[str(path) for path in shared], cache=str(cache.directory))

    def hello(self) -> Ready:
        assert self._serving is not None, "asked before the start"
        return Ready(blobs=self._serving.endpoint)

    def deliver(self, delivery: Delivery) -> None:
        raise InvariantError(f"blobs: was given a record of {delivery.header.queue}, but leases nothing")

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, Peers) and self._serving is not None:
            self._serving.allow(message.keys)

    def work(self) -> bool:
        return False

    def stats(self) -> dict[str, float]:
        return {"sent_bytes_total": float(self._serving.sent_bytes) if self._serving is not None else 0.0}

    def waiting(self) -> str:
        return ""

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        if self._serving is not None:
            self._serving.close()

    def wake_fd(self) -> int | None:
        return None
