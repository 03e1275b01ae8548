"""What of the pipeline's config weight-sync reads: its `config` face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.config.pipeline import PipelineConfig


@dataclass(frozen=True, kw_only=True)
class WeightSyncSettings:
    keep_versions: int
    max_lag: int


def weight_sync_settings(config: dict[str, Any]) -> WeightSyncSettings:
    """From the resolved config that the broker's welcome carries. Raises pydantic's ValidationError."""
    pipeline = PipelineConfig.model_validate(config)
    return WeightSyncSettings(keep_versions=pipeline.stages.weight_sync.keep_versions, max_lag=pipeline.schedule.lag_bound)
