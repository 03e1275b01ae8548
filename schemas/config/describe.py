"""What `tidemill check --all` shows: for each process of a pipeline, how many there are and the sections it goes by. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schemas.config.pipeline import PipelineConfig
from schemas.config.render import toml_lines

SEES: dict[str, tuple[str, ...]] = {
    "broker": ("run", "pipeline", "schedule", "sampling", "evaluation", "broker"),
    "host": ("run", "host"),
    "env": ("model", "sampling", "evaluation", "stages.env"),
    "rollout": ("model", "schedule", "stages.rollout"),
    "reward": ("model", "stages.reward"),
    "reference": ("model", "stages.reference"),
    "actor-train": ("run", "model", "schedule", "algorithm", "sampling", "stages.actor_train"),
    "weight-sync": ("run", "model", "stages.weight_sync"),
}
"""The sections that each process goes by; its welcome carries the whole configuration."""


def processes(config: PipelineConfig) -> dict[str, int]:
    """How many processes of each kind one machine starts, in the order in which they are named."""
    stages = config.stages
    return {
        "broker": 1,
        "host": 1,
        "env": stages.env.replicas,
        "rollout": stages.rollout.replicas,
        "reward": stages.reward.replicas,
        "reference": stages.reference.replicas if config.algorithm.kl_coefficient > 0 else 0,
        "actor-train": 1,
        "weight-sync": 1,
    }


def view(config: PipelineConfig, process: str) -> dict[str, Any]:
    """The sections that `process` goes by, by dotted name. Example: `view(config, "env")["stages.env"]["sessions"]`."""
    whole = config.model_dump(mode="json")
    flat = {**whole, **{f"stages.{name}": section for name, section in whole["stages"].items()}}
    return {section: flat[section] for section in SEES[process]}


def describe(config: PipelineConfig) -> str:
    """All processes with all they go by, as text; each section is valid TOML."""
    return "\n".join((head(config), *(line for name in SEES for line in _process(config, name)))) + "\n"


def head(config: PipelineConfig) -> str:
    """The loop in a line."""
    schedule = config.schedule
    return (
        f"pipeline {config.pipeline.name}: {schedule.steps} steps of {schedule.groups_per_step} groups x "
        f"{schedule.members} members, schedule {schedule.kind}, lag at most {schedule.lag_bound}"
    )


def _process(config: PipelineConfig, name: str) -> Iterator[str]:
    count = processes(config)[name]
    yield ""
    if count == 0:
        yield f"── {name}: not started, algorithm.kl_coefficient is 0"
        return
    yield f"── {name}: {count} process{'es' if count > 1 else ''}"
    for section, values in view(config, name).items():
        yield from (f"   {line}".rstrip() for line in toml_lines(values, section) if line)
