"""What is simulated: a pipeline's config, the laws, and what goes wrong when. Pure data."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from schemas.config import PipelineConfig
from tools.sim.laws import Laws


class Kill(Struct, frozen=True, kw_only=True):
    """Ends a process at `at`. With a host, the host restarts it; without, it is started again after `restart_after_s`."""

    name: str
    at: float
    restart_after_s: float | None = 1.0
    """None: never."""


class BrokerKill(Struct, frozen=True, kw_only=True):
    """The broker is gone at `at` and back `down_s` later: every line is cut."""

    at: float
    down_s: float = 0.5


class Cut(Struct, frozen=True, kw_only=True):
    """A process's line to the broker breaks at `at`: what is on its way is lost in both directions, nobody dies."""

    name: str
    at: float


class Faults(Struct, frozen=True, kw_only=True):
    """What goes wrong."""

    kills: tuple[Kill, ...] = ()
    broker: tuple[BrokerKill, ...] = ()
    cuts: tuple[Cut, ...] = ()
    votes: tuple[int, ...] = ()
    """Steps whose first vote fails."""
    duplicated: float = 0.0
    """Chance that a numbered message arrives twice."""
    torn: float = 0.0
    """Chance that a numbered message is lost while later ones of its sender arrive."""
    forgetful_trainer: bool = False
    """A restarted trainer makes other weights from the same plan."""


class Scenario(Struct, frozen=True, kw_only=True):
    """One run. `config` overrides the pipeline's sections, nested."""

    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    laws: Laws = Laws()
    faults: Faults = Faults()
    hosts: bool = False
    """True: one host starts and restarts the stages; False: they are started by hand."""
    slots: int = 3
    """Of the host."""
    time_limit_s: float = 3600.0
    """Virtual: a run that is not over by then has failed."""


BASE: dict[str, Any] = {
    "pipeline": {"name": "sim"},
    "model": {"path": "none"},
    "stages": {"env": {"environment": "sim:Environment"}, "reward": {"verifier": "sim:reward"}},
    "evaluation": {"problems": 32},
}


def resolved_config(scenario: Scenario) -> dict[str, Any]:
    """The whole checked config, as the broker gets it. Raises pydantic's ValidationError."""
    raw = merged(merged(BASE, {"run": {"seed": scenario.seed}}), scenario.config)
    return PipelineConfig.model_validate(raw).model_dump(mode="json")


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the leaves of `over` in their places."""
    result = dict(base)
    for key, value in over.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result
