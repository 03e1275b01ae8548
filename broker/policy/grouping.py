"""Grouping: what becomes of a group all of whose members have a reward or have failed (RolloutPipe's complete groups;
DAPO's filter).

A group whose rewards are all equal has no advantage, so no gradient but the KL's; it is dropped before reference is
paid for, and another takes its place, while the round's refills last. After that it is kept, so that a step always has
all its groups. Baseline: keep all. Pure: rewards in, a verdict with its numbers out.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """What happens to a finished group."""

    KEEP = "keep"
    DROP_AND_REFILL = "drop_and_refill"
    BROKEN = "broken"


class GroupView(Struct, frozen=True, kw_only=True):
    """A finished group as the policy sees it."""

    rewards: tuple[float, ...]
    """Of the members that have one."""
    min_members: int
    drop_uniform: bool
    refills: int
    """Refilled since the last step plan."""
    max_refills: int


def judge(group: GroupView) -> Verdict:
    """The verdict on a finished group."""
    if len(group.rewards) < group.min_members:
        return Verdict.BROKEN
    uniform = max(group.rewards) == min(group.rewards)
    if uniform and group.drop_uniform and group.refills < group.max_refills:
        return Verdict.DROP_AND_REFILL
    return Verdict.KEEP


def keep_all(group: GroupView) -> Verdict:
    """The baseline: every group that is not broken is trained, with or without an advantage."""
    return Verdict.BROKEN if len(group.rewards) < group.min_members else Verdict.KEEP
