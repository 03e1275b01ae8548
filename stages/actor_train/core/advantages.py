"""Group-relative advantages (GRPO; Shao et al. 2024, DeepSeekMath, eq. 3).

A = (r - mean) / (std + epsilon), mean and standard deviation (n - 1) over all rewards of the group. A group whose
rewards are all equal says nothing about its members: every advantage is 0, decided by max == min, since rounding
makes a standard deviation of 1e-9 out of equal rewards and a huge advantage out of that. So is that of a member
that is alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.errors import InvariantError
from schemas.messages import GroupRewards

EPSILON = 1e-6
"""Added to the standard deviation, as in verl and slime; far below any spread of rewards that means something."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of one group's rewards; `deviation` is 0 where all are equal."""

    mean: float
    deviation: float

    def advantage(self, reward: float) -> float:
        return (reward - self.mean) / (self.deviation + EPSILON) if self.deviation else 0.0


def spread_of(rewards: Sequence[float]) -> Spread:
    """Float64 throughout. `rewards` are those of all members, trained or not."""
    values = np.asarray(rewards, np.float64)
    if not values.size:
        raise InvariantError("a group without rewards cannot be trained")
    uniform = values.max() == values.min()
    return Spread(float(values.mean()), 0.0 if uniform else float(values.std(ddof=1)))


def spreads_by_group(groups: Iterable[GroupRewards]) -> dict[int, Spread]:
    return {group.group: spread_of(group.rewards) for group in groups}


def advantage_of(spreads: Mapping[int, Spread], group: int | None, reward: float) -> float:
    """Raises InvariantError where the plan carries no rewards of the sample's group."""
    if group is None or group not in spreads:
        raise InvariantError(f"the plan holds a sample of group {group} but not the rewards of that group")
    return spreads[group].advantage(reward)
