"""Which process is struck when, and how: a list that depends on the seed and the settings alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

TARGETS = ("broker", "host", "env-0", "rollout-0", "reward-0", "reference-0", "actor-train-0", "weight-sync-0")
SHORTEST_FREEZE_S = 0.5
LONGEST_FREEZE_S = 15.0
"""Half as long again as the silence after which the broker gives a process up."""


@dataclass(frozen=True)
class Blow:
    """One misfortune. `at_s`: seconds since all processes were there; `freeze_s`: 0 for kill -9, else SIGSTOP for so long."""

    at_s: float
    target: str
    freeze_s: float = 0.0

    def __str__(self) -> str:
        what = f"freeze {self.target} for {self.freeze_s:.1f} s" if self.freeze_s else f"kill {self.target}"
        return f"at {self.at_s:.1f} s {what}"


def schedule(
    seed: int, minutes: float, blows_per_minute: float, freeze_share: float, longest_freeze_s: float = LONGEST_FREEZE_S
) -> list[Blow]:
    """Blows of a storm of `minutes`, at random moments (a Poisson process), on any process alike."""
    rng = Random(f"chaos {seed}")
    blows, now = [], 0.0
    while (now := now + rng.expovariate(blows_per_minute / 60.0)) < 60.0 * minutes:
        target = rng.choice(TARGETS)
        frozen, freeze_s = rng.random() < freeze_share, rng.uniform(SHORTEST_FREEZE_S, longest_freeze_s)
        blows.append(Blow(now, target, freeze_s if frozen else 0.0))
    return blows
