"""Grouping: keep, drop and refill, or broken."""

import pytest

from broker.policy.grouping import GroupView, Verdict, judge


def a_group(*rewards: float, refills: int = 0, drop_uniform: bool = True) -> GroupView:
    """At least two members, at most two refills."""
    return GroupView(rewards=rewards, min_members=2, drop_uniform=drop_uniform, refills=refills, max_refills=2)


@pytest.mark.parametrize(
    ("group", "verdict"),
    [
        (a_group(1.0, 0.0), Verdict.KEEP),
        (a_group(1.0, 1.0), Verdict.DROP_AND_REFILL),
        (a_group(0.0, 0.0, 0.0), Verdict.DROP_AND_REFILL),
        (a_group(1.0), Verdict.BROKEN),
        (a_group(), Verdict.BROKEN),
    ],
)
def test_a_group_is_kept_where_its_rewards_differ_and_enough_members_came_through(group: GroupView, verdict: Verdict) -> None:
    assert judge(group) is verdict


def test_uniform_groups_are_kept_when_the_rounds_refills_are_spent() -> None:
    assert judge(a_group(1.0, 1.0, refills=1)) is Verdict.DROP_AND_REFILL
    assert judge(a_group(1.0, 1.0, refills=2)) is Verdict.KEEP


def test_the_baseline_keeps_uniform_groups() -> None:
    assert judge(a_group(1.0, 1.0, drop_uniform=False)) is Verdict.KEEP
