"""What of the pipeline's config weight-sync reads: its `config` face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.config.pipeline import PipelineConfig


@dataclass(frozen=True, kw_only=True)
class WeightSyncSettings:
    keep_versions: int
    max_lag: int
    transfer: str
    """`full` or `delta`."""
    delta_chain_max: int
    cache_bytes: int
    """Of this machine's cache, in which deltas are kept for the server to give out."""


def weight_sync_settings(config: dict[str, Any]) -> WeightSyncSettings:
    """From the resolved config that the broker's welcome carries. Raises pydantic's ValidationError."""
    pipeline = PipelineConfig.model_validate(config)
    stage = pipeline.stages.weight_sync
    return WeightSyncSettings(
        keep_versions=stage.keep_versions,
        max_lag=pipeline.schedule.lag_bound,
        transfer=stage.transfer,
        delta_chain_max=stage.delta_chain_max,
        cache_bytes=pipeline.host.cache_bytes,
    )
