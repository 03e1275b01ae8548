"""What a host decides, on orders and exits: pure."""

import pytest

from schemas.edges import Role
from schemas.messages import StartProcess, StopProcess
from stages.host.core import Kill, Report, Roster, Spawn, Terminate
from stages.host.restarts import RestartPolicy
from stages.service.main import EXIT_FENCED

ENV = StartProcess(name="env-1", role=Role.ENV)


def a_roster(limit: int = 2) -> Roster:
    return Roster(RestartPolicy(limit=limit, first_s=1.0, most_s=8.0))


def a_running_roster(limit: int = 2) -> Roster:
    roster = a_roster(limit)
    roster.start(ENV)
    roster.spawned("env-1", 500)
    return roster


def test_an_ordered_process_is_spawned_with_its_slots() -> None:
    order = StartProcess(name="rollout-1", role=Role.ROLLOUT, slots=("cpu:1",))
    assert a_roster().start(order) == [Spawn("rollout-1", Role.ROLLOUT, ("cpu:1",))]


def test_a_second_order_for_a_running_process_changes_nothing() -> None:
    roster = a_running_roster()
    assert roster.start(ENV) == []
    assert roster.running == {"env-1": 500}


def test_an_order_for_a_process_that_waits_for_its_restart_does_not_start_it_twice() -> None:
    roster = a_running_roster()
    roster.exited("env-1", -9, 10.0)
    assert roster.start(ENV) == []


def test_a_death_is_reported_at_once_and_mended_after_the_back_off() -> None:
    roster = a_running_roster()
    assert roster.exited("env-1", -9, 10.0) == [Report("env-1", -9, final=False, restarts=0)]
    assert roster.next_wake() == 11.0
    assert roster.wake(10.9) == []
    assert roster.wake(11.0) == [Spawn("env-1", Role.ENV, ())]
    assert roster.next_wake() is None


def test_a_process_that_dies_too_often_is_given_up() -> None:
    roster = a_running_roster(limit=1)
    roster.exited("env-1", 1, 10.0)
    roster.wake(11.0)
    roster.spawned("env-1", 501)
    assert roster.exited("env-1", 1, 12.0) == [Report("env-1", 1, final=True, restarts=1)]
    assert roster.next_wake() is None


def test_bad_input_is_final_at_once() -> None:
    assert a_running_roster().exited("env-1", 2, 10.0) == [Report("env-1", 2, final=True, restarts=0)]


def test_a_process_that_ends_well_without_an_order_is_started_again() -> None:
    assert a_running_roster().exited("env-1", 0, 10.0) == [Report("env-1", 0, final=False, restarts=0)]


def test_a_stopped_process_is_asked_then_killed_and_not_restarted() -> None:
    roster = a_running_roster()
    assert roster.stop(StopProcess(name="env-1", grace_s=2.0), 10.0) == [Terminate("env-1")]
    assert roster.next_wake() == 12.0
    assert roster.wake(12.0) == [Kill("env-1")]
    assert roster.exited("env-1", -9, 12.1) == [Report("env-1", -9, final=True, restarts=0)]
    assert not roster.ended


def test_a_stopped_process_can_be_ordered_again() -> None:
    roster = a_running_roster()
    roster.stop(StopProcess(name="env-1"), 10.0)
    roster.exited("env-1", 0, 10.5)
    assert roster.start(ENV) == [Spawn("env-1", Role.ENV, ())]


def test_a_stop_cancels_a_restart_and_says_that_the_exit_was_final() -> None:
    roster = a_running_roster()
    roster.exited("env-1", -9, 10.0)
    assert roster.stop(StopProcess(name="env-1"), 10.1) == [Report("env-1", -9, final=True, restarts=0)]
    assert roster.wake(100.0) == []


def test_a_stop_without_a_name_ends_all_and_then_the_host() -> None:
    roster = a_running_roster()
    roster.start(StartProcess(name="reward-1", role=Role.REWARD))
    roster.spawned("reward-1", 501)
    assert roster.stop(StopProcess(), 10.0) == [Terminate("env-1"), Terminate("reward-1")]
    roster.exited("env-1", 0, 11.0)
    assert not roster.ended
    roster.exited("reward-1", 0, 11.0)
    assert roster.ended


def test_after_a_drain_nothing_is_restarted() -> None:
    roster = a_running_roster()
    assert roster.drain() == []
    assert roster.exited("env-1", 0, 10.0) == [Report("env-1", 0, final=True, restarts=0)]
    assert roster.start(ENV) == []
    assert roster.ended


@pytest.mark.parametrize(("name", "role"), [("../env", Role.ENV), ("env-1", Role.HOST), ("", Role.ENV)])
def test_a_name_or_role_that_no_host_starts_is_refused(name: str, role: Role) -> None:
    (report,) = a_roster().start(StartProcess(name=name, role=role))
    assert isinstance(report, Report)
    assert (report.final, report.code) == (True, 2)


def test_a_fenced_process_is_started_again_after_the_back_off() -> None:
    roster = a_running_roster()
    assert roster.exited("env-1", EXIT_FENCED, 10.0) == [Report("env-1", EXIT_FENCED, final=False, restarts=0)]
    assert roster.wake(11.0) == [Spawn("env-1", Role.ENV, ())]
