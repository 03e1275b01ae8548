"""Admission: how many groups may enter, and which bound held."""

import pytest

from broker.policy.admission import AdmissionView, admit


def a_view(**changes: object) -> AdmissionView:
    """Two groups a step, lag 1, twenty steps, room for a hundred groups."""
    fields: dict[str, object] = {
        "schedule": "async", "committed_step": 0, "newest_in_use": 0, "oldest_in_use": 0, "steps": 20, "groups_per_step": 2, "max_lag": 1,
        "admitted": 0, "room_bytes": 1000, "group_bytes": 10,
    }  # fmt: skip
    return AdmissionView(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("oldest", "admitted", "groups"), [(0, 0, 4), (0, 3, 1), (0, 4, 0), (1, 4, 2), (5, 4, 10)])
def test_async_lets_groups_in_up_to_the_lag_beyond_the_oldest_version_in_use(oldest: int, admitted: int, groups: int) -> None:
    decision = admit(a_view(committed_step=oldest, newest_in_use=oldest, oldest_in_use=oldest, admitted=admitted))
    assert (decision.groups, decision.reason) == (groups, "max_lag")


def test_a_slow_replica_holds_async_admission_back() -> None:
    assert admit(a_view(committed_step=3, newest_in_use=3, oldest_in_use=1, admitted=6)).groups == 0


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_nothing_enters_while_no_replica_has_a_version(schedule: str) -> None:
    decision = admit(a_view(schedule=schedule, newest_in_use=None, oldest_in_use=None))
    assert (decision.groups, decision.reason) == (0, "version not in use")


def test_sync_lets_one_round_in_once_its_version_is_in_use() -> None:
    assert admit(a_view(schedule="sync")).groups == 2
    assert admit(a_view(schedule="sync", admitted=2)).groups == 0
    assert admit(a_view(schedule="sync", committed_step=1, newest_in_use=0, admitted=2)).groups == 0
    assert admit(a_view(schedule="sync", committed_step=1, newest_in_use=1, admitted=2)).groups == 2


def test_the_last_step_bounds_admission() -> None:
    decision = admit(a_view(committed_step=19, newest_in_use=19, oldest_in_use=19, admitted=38))
    assert (decision.groups, decision.allowed, decision.reason) == (2, 40, "last step")


def test_the_budget_bounds_admission_to_whole_groups() -> None:
    assert admit(a_view(room_bytes=25)).groups == 2
    assert admit(a_view(room_bytes=25)).reason == "budget"
    assert admit(a_view(room_bytes=9)).groups == 0
    assert admit(a_view(room_bytes=-5)).groups == 0
