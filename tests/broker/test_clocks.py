"""Clocks that jump, and processes that stood still: nobody's work is taken away for it."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from broker.core.events import Tick
from schemas.edges import STAGES, Role
from schemas.messages import Heartbeat
from tests.broker.edge_doubles import Desk, a_hello
from tests.broker.folding import entries_of, events_of, fold
from tests.broker.stubborn_reward import a_stubborn_reward
from tests.broker.test_driver import ENV, running
from tests.broker.test_restarts import check_that_every_ticket_ended_once
from tests.skeleton.broker_process import a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until

HOUR = 3600.0


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_wall_clock_that_jumps_an_hour_ends_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    desk = Desk(tmp_path / "run", a_run_config(tmp_path))
    held = [delivery.lease for delivery in running(desk)]
    before, real = desk.driver.now(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + jump) * 1e9))
    for _ in range(5):
        desk.driver._tick_at = desk.driver.now()  # due
        desk.say(ENV, Heartbeat())
    assert before <= desk.driver.now() < before + HOUR / 2
    assert set(held) <= desk.driver.state.leases.keys()
    assert desk.driver.state.clients[ENV].connected
    monkeypatch.undo()
    desk.close()


def test_a_broker_and_a_stage_that_stood_still_together_take_nothing_from_each_other(tmp_path: Path) -> None:
    """As in a machine that is suspended: far longer than the silence after which a process counts as dead."""
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "broker.dead_s=1.5", "broker.grace_s=20")
    others = [role for role in STAGES if role is not Role.REWARD]
    with (
        a_broker_process(run, config) as broker,
        a_crew(broker.endpoint, others) as crew,
        a_stubborn_reward(tmp_path, broker.endpoint) as reward,
    ):
        until(lambda: reward.count("held") >= 3, "it holds episodes", crew.story)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        reward.signal(signal.SIGSTOP)
        stand_still(4.0)
        broker.process.send_signal(signal.SIGCONT)
        until(lambda: "paused" in broker.log(), "the broker sees that it stood still", broker.log)
        reward.signal(signal.SIGCONT)
        reward.go()
        crew.wait_until_home()
        assert broker.wait() == 0
    assert "silent for" not in (run / "broker.log").read_text()
    check_that_every_ticket_ended_once(run)
    assert any(isinstance(event, Tick) and event.late_s > 1.5 for event in events_of(run))
    state, _ = fold(entries_of(run))
    assert state.queues["episodes"].redeliveries == 0


def stand_still(seconds: float) -> None:
    """The pause is the subject here; a process that does nothing takes it."""
    subprocess.run(["sleep", str(seconds)], check=True)


def test_the_first_tick_of_a_broker_is_not_late(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run", a_run_config(tmp_path))
    desk.say("nobody", a_hello(Role.ENV, "nobody"))
    desk.close()
    assert all(event.late_s < 1.0 for event in events_of(tmp_path / "run") if isinstance(event, Tick))
