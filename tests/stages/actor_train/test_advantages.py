"""Group-relative advantages."""

import math

import numpy as np
import pytest

from schemas.errors import InvariantError
from schemas.messages import GroupRewards
from stages.actor_train.core.advantages import EPSILON, advantage_of, spread_of, spreads_by_group


def test_an_advantage_is_the_distance_from_the_mean_in_standard_deviations() -> None:
    rewards = [0.0, 1.0, 1.0, 0.25]
    spread = spread_of(rewards)
    deviation = math.sqrt(sum((r - 0.5625) ** 2 for r in rewards) / 3)
    for reward in rewards:
        assert spread.advantage(reward) == pytest.approx((reward - 0.5625) / (deviation + EPSILON), rel=1e-12)


def test_advantages_of_a_group_add_up_to_nothing() -> None:
    rewards = np.random.default_rng(3).normal(size=8)
    spread = spread_of(list(rewards))
    assert sum(spread.advantage(float(reward)) for reward in rewards) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_a_group_of_equal_rewards_has_no_advantage_whatever_rounding_does(reward: float) -> None:
    assert spread_of([reward] * 7).advantage(reward) == 0.0


def test_a_member_alone_has_no_advantage() -> None:
    assert spread_of([1.0]).advantage(1.0) == 0.0


def test_members_that_are_not_trained_count_for_the_mean() -> None:
    spreads = spreads_by_group([GroupRewards(group=5, rewards=(1.0, 0.0, 0.0, 0.0))])
    assert advantage_of(spreads, 5, 1.0) == pytest.approx(0.75 / (0.5 + EPSILON))


def test_a_sample_whose_group_has_no_rewards_is_a_broken_promise() -> None:
    with pytest.raises(InvariantError, match="group 6"):
        advantage_of(spreads_by_group([GroupRewards(group=5, rewards=(1.0, 0.0))]), 6, 1.0)
    with pytest.raises(InvariantError, match="without rewards"):
        spread_of([])
