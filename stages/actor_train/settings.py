"""What of the pipeline's config actor-train reads: its `config` face."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from schemas.config.pipeline import PipelineConfig
from stages.actor_train.loss import LossSettings


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    model_path: str
    dtype: str
    """Of weights, gradients and optimizer state, such as `float32`."""
    device: str
    micro_batch_tokens: int
    learning_rate: float
    learning_rate_end: float
    """Share of it that is left at step `steps`."""
    steps: int
    betas: tuple[float, float]
    weight_decay: float
    warmup_steps: int
    gradient_clip: float
    loss: LossSettings
    checkpoint_every: int
    keep_checkpoints: int
    seed: int
    digest: str = ""
    """xxh3-64 hex of all of the above: says whether a checkpoint was written under other settings."""

    def learning_rate_at(self, step: int) -> float:
        """Of optimizer step `step`, counted from 1: up linearly over `warmup_steps`, down linearly to its end's share at the last step."""
        warm = min(1.0, step / self.warmup_steps if self.warmup_steps else 1.0)
        done = min(1.0, (step - 1) / max(1, self.steps - 1))
        return self.learning_rate * warm * (1.0 - (1.0 - self.learning_rate_end) * done)


def train_settings(config: dict[str, Any]) -> TrainSettings:
    """From the resolved config that the broker's welcome carries. Raises pydantic's ValidationError."""
    pipeline = PipelineConfig.model_validate(config)
    stage, algorithm = pipeline.stages.actor_train, pipeline.algorithm
    settings = TrainSettings(
        model_path=pipeline.model.path,
        dtype=stage.dtype,
        device=stage.device,
        micro_batch_tokens=stage.micro_batch_tokens,
        learning_rate=algorithm.learning_rate,
        learning_rate_end=algorithm.learning_rate_end,
        steps=pipeline.schedule.steps,
        betas=algorithm.betas,
        weight_decay=algorithm.weight_decay,
        warmup_steps=algorithm.warmup_steps,
        gradient_clip=algorithm.gradient_clip,
        loss=LossSettings(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            kl_coefficient=algorithm.kl_coefficient,
            aggregation=algorithm.aggregation,
        ),
        checkpoint_every=stage.checkpoint_every,
        keep_checkpoints=stage.keep_checkpoints,
        seed=pipeline.run.seed,
    )
    return dataclasses.replace(settings, digest=xxhash.xxh3_64_hexdigest(msgspec.json.encode(settings)))
