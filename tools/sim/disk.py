"""What outlives processes: the trainer's checkpoints, and what the fake stages note for the run's result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Training:
    """What the trainer did in one applied step."""

    tickets: tuple[int, ...]
    lags: Counter[int]
    """Tokens by lag, those that lost their mask left out."""
    masked: int
    """Tokens older than the plan allowed."""


@dataclass
class Disk:
    """One run's."""

    checkpoints: dict[int, str] = field(default_factory=dict)
    """Digest of the weights by step."""
    trained: dict[int, list[Training]] = field(default_factory=dict)
    """By step; more than one where a restarted trainer made it again."""
    busy_s: float = 0.0
    """The trainer's, computing and applying."""
    first_plan_at: float | None = None
    last_step_at: float | None = None
    voted_down: set[int] = field(default_factory=set)
    sessions_failed: int = 0
    context_checks: int = 0
    """Turns whose context was compared with the digest that its env computed."""
