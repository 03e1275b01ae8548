"""What `tidemill check` shows first: which processes run what, and which keys are not at their defaults. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from schemas.config.describe import head, processes
from schemas.config.pipeline import PipelineConfig
from schemas.config.render import value_text


def brief(config: PipelineConfig) -> str:
    """A screen: the loop in a line, its processes, the keys that differ from their defaults as they would be given to `--set`."""
    keys = ["", "not at their defaults (all keys: --all):", *_changed_lines(config)]
    return "\n".join([head(config), "", *_processes(config), *keys]) + "\n"


def _processes(config: PipelineConfig) -> Iterator[str]:
    runs = _what_they_run(config)
    for name, count in processes(config).items():
        what = runs.get(name, "") if count else "not started: algorithm.kl_coefficient is 0"
        yield f"  {count:>2} {name:<12} {what}".rstrip()


def _what_they_run(config: PipelineConfig) -> dict[str, str]:
    stages, model = config.stages, config.model.path
    return {
        "broker": config.broker.endpoint or "in a private folder of this machine",
        "env": f"{stages.env.environment}, {stages.env.sessions} sessions, {stages.env.max_turns} turns and "
        f"{stages.env.max_episode_tokens} tokens at most",
        "rollout": f"{stages.rollout.engine} on {stages.rollout.device}, {stages.rollout.dtype}, {model}",
        "reward": stages.reward.verifier,
        "reference": f"on {stages.reference.device}, {stages.reference.dtype}",
        "actor-train": f"{stages.actor_train.backend} on {stages.actor_train.device}, {stages.actor_train.dtype}",
        "weight-sync": f"keeps {stages.weight_sync.keep_versions} versions",
    }


def _changed_lines(config: PipelineConfig) -> list[str]:
    return [f"  {key} = {value_text(value)}" for key, value in changed(config)] or ["  nothing"]


def changed(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each key that has no default or another value than it."""
    for name, field in type(config).model_fields.items():
        value, key = getattr(config, name), f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from changed(value, f"{key}.")
        elif field.is_required() or value != field.get_default(call_default_factory=True):
            yield from ((f"{key}.{inner}", part) for inner, part in value.items()) if isinstance(value, dict) else ((key, value),)
