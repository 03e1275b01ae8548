"""What `tidemill up` decides on exits and signals: pure."""

import pytest

from stages.host.restarts import RestartPolicy
from tools.up.watch import STOP_PATIENCE_S, AskStop, Finish, Outcome, Start, Watch


def a_watch(limit: int = 2) -> Watch:
    return Watch(RestartPolicy(limit=limit, first_s=1.0, most_s=8.0))


def test_broker_and_host_start_at_once() -> None:
    assert a_watch().begin() == [Start("broker"), Start("host")]


def test_a_broker_that_ends_well_ends_the_run() -> None:
    assert a_watch().exited("broker", 0, 5.0) == [Finish(Outcome.ENDED)]


def test_a_broker_that_says_why_the_run_failed_is_not_restarted() -> None:
    assert a_watch().exited("broker", 1, 5.0, explained=True) == [Finish(Outcome.FAILED)]


@pytest.mark.parametrize(("name", "code"), [("broker", -9), ("broker", 1), ("host", -9), ("host", 1), ("host", 0)])
def test_a_crash_is_mended_after_the_back_off(name: str, code: int) -> None:
    watch = a_watch()
    assert watch.exited(name, code, 5.0) == []
    assert watch.next_wake() == 6.0
    assert watch.wake(6.0) == [Start(name)]
    assert watch.next_wake() is None


@pytest.mark.parametrize("name", ["broker", "host"])
def test_a_process_that_goes_on_crashing_ends_the_run_under_its_name(name: str) -> None:
    watch = a_watch(limit=1)
    watch.exited(name, -9, 5.0)
    watch.wake(6.0)
    (finish,) = watch.exited(name, -11, 7.0)
    assert isinstance(finish, Finish)
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, name)
    assert finish.reason == "ended by signal 11 after 1 restarts and is given up"


@pytest.mark.parametrize("name", ["broker", "host"])
def test_bad_input_is_not_tried_again(name: str) -> None:
    (finish,) = a_watch().exited(name, 2, 5.0)
    assert isinstance(finish, Finish)
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, name)


def test_a_host_that_ends_while_the_run_does_is_let_go() -> None:
    watch = a_watch()
    watch.ending = True
    assert watch.exited("host", 0, 5.0) == []
    assert watch.next_wake() is None


def test_the_first_signal_asks_the_broker_and_its_end_is_a_stop() -> None:
    watch = a_watch()
    assert watch.signalled(5.0, broker_answers=True) == [AskStop()]
    assert watch.exited("host", 0, 5.5) == []
    assert watch.exited("broker", 0, 6.0) == [Finish(Outcome.STOPPED)]


def test_a_second_signal_does_not_wait() -> None:
    watch = a_watch()
    watch.signalled(5.0, broker_answers=True)
    assert watch.signalled(5.1, broker_answers=True) == [Finish(Outcome.CUT_OFF)]


def test_a_signal_before_the_broker_answers_ends_all_at_once() -> None:
    assert a_watch().signalled(0.1, broker_answers=False) == [Finish(Outcome.CUT_OFF)]


def test_a_signal_while_the_broker_waits_for_its_restart_ends_all_at_once() -> None:
    watch = a_watch()
    watch.exited("broker", -9, 5.0)
    assert watch.signalled(5.1, broker_answers=True) == [Finish(Outcome.CUT_OFF)]


def test_a_broker_that_does_not_end_is_waited_for_within_bounds() -> None:
    watch = a_watch()
    watch.signalled(5.0, broker_answers=True)
    assert watch.next_wake() == 5.0 + STOP_PATIENCE_S
    assert watch.wake(5.0 + STOP_PATIENCE_S) == [Finish(Outcome.CUT_OFF)]


def test_a_broker_that_crashes_while_stopping_is_not_started_again() -> None:
    watch = a_watch()
    watch.signalled(5.0, broker_answers=True)
    assert watch.exited("broker", -9, 5.2) == [Finish(Outcome.CUT_OFF)]
