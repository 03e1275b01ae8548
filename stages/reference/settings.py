"""What of the pipeline's config reference reads: its `config` face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.config.pipeline import PipelineConfig


@dataclass(frozen=True, kw_only=True)
class ReferenceSettings:
    model_path: str
    batch_tokens: int
    """Tokens of one forward pass at most, padding included."""
    dtype: str
    device: str


def reference_settings(config: dict[str, Any]) -> ReferenceSettings:
    """From the resolved config that the broker's welcome carries. Raises pydantic's ValidationError."""
    pipeline = PipelineConfig.model_validate(config)
    stage = pipeline.stages.reference
    return ReferenceSettings(model_path=pipeline.model.path, batch_tokens=stage.batch_tokens, dtype=stage.dtype, device=stage.device)
