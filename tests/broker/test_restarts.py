"""A whole run with a real broker process: it ends well, and goes on where it was after any kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.core.events import Received, Restarted
from broker.core.state import Phase
from broker.status import summary
from schemas.edges import STAGES, Role
from schemas.messages import Commit
from tests.broker.folding import entries_of, events_of, fold
from tests.skeleton.broker_process import HOUSE, BrokerProcess, a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.stages import FakeRollout, FakeTrainer
from tests.skeleton.waiting import until


def read_summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def check_that_every_ticket_ended_once(run: Path) -> None:
    """The run closed its ledger; a fold of its journal says the same, byte for byte."""
    told = read_summary(run)
    assert told["ended"] == "done"
    assert told["steps"] == told["steps_asked"]
    ledger = told["ledger"]
    assert ledger["closed"]
    assert ledger["in_flight"] == ledger["provisional"] == 0
    assert ledger["issued"] == ledger["trained"] + ledger["evaluated"] + sum(ledger["dropped"].values()) + sum(ledger["failed"].values())
    state, arena = fold(entries_of(run))
    assert state.phase is Phase.CLOSED
    assert state.tickets == state.leases == state.sessions == {}
    folded = json.loads(json.dumps(summary(state, 0.0)))
    assert {**folded, "wall_seconds": 0} == {**told, "wall_seconds": 0}
    assert len(arena) <= len(state.installs) + sum(len(q.ready) + len(q.back) for q in state.queues.values())


def test_a_whole_run_ends_well(tmp_path: Path) -> None:
    with a_broker_process(tmp_path / "run", a_run_config(tmp_path)) as broker, a_crew(broker.endpoint) as crew:
        crew.wait_until_home()
        assert broker.wait() == 0
        trainer = crew.members["actor-train-0"].peer
        assert isinstance(trainer, FakeTrainer)
        assert len(trainer.trained) == len(set(trainer.trained)) == 3 * 2 * 2
    check_that_every_ticket_ended_once(tmp_path / "run")
    assert read_summary(tmp_path / "run")["evaluation_problems"] == 3
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_a_synchronous_run_ends_well_and_without_lag(tmp_path: Path) -> None:
    config = a_run_config(tmp_path, "schedule.kind=sync")
    with a_broker_process(tmp_path / "run", config) as broker, a_crew(broker.endpoint) as crew:
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(tmp_path / "run")


def test_without_a_kl_no_reference_is_needed(tmp_path: Path) -> None:
    class NoReference(FakeTrainer):
        def _check(self, plan: object, frames: object) -> None:
            """Samples come without reference log-probs."""

    config = a_run_config(tmp_path, "algorithm.kl_coefficient=0")
    roles = [role for role in STAGES if role not in (Role.REFERENCE, Role.ACTOR_TRAIN)]
    with a_broker_process(tmp_path / "run", config) as broker, a_crew(broker.endpoint, roles) as crew:
        crew.add(Role.ACTOR_TRAIN, peer=NoReference())
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(tmp_path / "run")


@pytest.mark.parametrize("kills", [(1,), (20, 100), (40, 80, 120, 160)])
def test_a_run_survives_the_death_of_its_broker(tmp_path: Path, kills: tuple[int, ...]) -> None:
    """Killed after so many answered records, so in several phases; the stages are not told."""
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "schedule.steps=6", "evaluation.problems=6")
    with a_broker_process(run, config) as broker, a_crew(broker.endpoint) as crew:
        for answers in kills:
            crew.wait_for_answers(answers)
            broker.kill()
            broker.start()
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)
    events = events_of(run)
    assert sum(isinstance(event, Restarted) for event in events) == len(kills)
    trainer = crew.members["actor-train-0"].peer
    assert isinstance(trainer, FakeTrainer)
    assert len(trainer.trained) == len(set(trainer.trained)) == 6 * 2 * 2


def test_what_was_in_flight_at_the_death_of_a_broker_is_not_done_again(tmp_path: Path) -> None:
    """Leases go on under the same id, commits in the outbox among them: no ticket needs a second attempt."""
    run = tmp_path / "run"
    others = [role for role in STAGES if role is not Role.ROLLOUT]
    with a_broker_process(run, a_run_config(tmp_path)) as broker, a_crew(broker.endpoint, others) as crew:
        rollout = FakeRollout()
        rollout.slow = True
        crew.add(Role.ROLLOUT, peer=rollout)
        until(lambda: len(rollout.held) >= 3, "rollout holds the turns of the evaluation", crew.story)
        broker.kill()
        rollout.slow = False
        until(lambda: not rollout.held, "rollout answers into the void", crew.story)
        broker.start()
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)
    commits = [event.message for event in events_of(run) if isinstance(event, Received) and isinstance(event.message, Commit)]
    assert {header.attempt for commit in commits for header in commit.puts if header.ticket} == {1}


def test_the_loss_of_any_stage_costs_no_ticket(tmp_path: Path) -> None:
    """Each stage crashes once with work in its hands, and comes back under its name."""
    run = tmp_path / "run"
    with a_broker_process(run, a_run_config(tmp_path)) as broker, a_crew(broker.endpoint) as crew:
        for role in (Role.ROLLOUT, Role.ENV, Role.REWARD, Role.REFERENCE):
            member = crew.members[f"{role.value}-0"]
            member.peer.slow = True
            until(lambda: member.peer.held or not member.at_work, f"{role} holds something", crew.story)  # noqa: B023
            member.crash()
            crew.add(role)
        crew.members["actor-train-0"].crash()
        crew.add(Role.ACTOR_TRAIN)
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)


def test_a_stage_process_killed_with_work_in_hand_is_given_up_and_its_work_goes_to_another(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "broker.dead_s=1.5")
    with a_broker_process(run, config) as broker, a_crew(broker.endpoint, [role for role in STAGES if role is not Role.REWARD]) as crew:
        command = [sys.executable, "-m", "tests.skeleton", "reward", "--broker", broker.endpoint, "--name", "reward-a"]
        victim = subprocess.Popen(command, cwd=HOUSE, stderr=subprocess.DEVNULL)
        try:
            until(lambda: "reward-a" in broker.log(), "reward-a is ready", broker.log)
            victim.send_signal(signal.SIGSTOP)
            until(lambda: "client_lost" in broker.log(), "the broker gives the silent process up", broker.log)
            crew.add(Role.REWARD, "reward-b")
            crew.wait_until_home()
            assert broker.wait() == 0
        finally:
            victim.kill()
            victim.wait()
    check_that_every_ticket_ended_once(run)


# --- the process ---------------------------------------------------------------------------------------------------------------


def test_the_endpoint_file_names_where_the_broker_listens(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with a_broker_process(run, a_run_config(tmp_path), "tcp://127.0.0.1:*") as broker, a_crew((run / "endpoint").read_text()) as crew:
        assert (run / "endpoint").read_text().startswith("tcp://127.0.0.1:")
        crew.wait_until_home()
        assert broker.wait() == 0


def test_sigterm_ends_a_run_cleanly_and_it_can_be_taken_up_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "schedule.steps=200")
    with a_broker_process(run, config) as broker:
        with a_crew(broker.endpoint) as crew:
            until(lambda: (run / "metrics.jsonl").read_text().count("\n") >= 2, "two steps are done", crew.story)
            broker.terminate()
            crew.wait_until_home()
            assert broker.wait() == 0
        first = read_summary(run)
        assert first["ended"] == "stopped"
        assert first["ledger"]["closed"]
        broker.start()
        with a_crew(broker.endpoint) as crew:
            until(lambda: (run / "metrics.jsonl").read_text().count("\n") >= first["steps"] + 2, "two more steps are done", crew.story)
            broker.terminate()
            crew.wait_until_home()
            assert broker.wait() == 0
    second = read_summary(run)
    assert second["steps"] >= first["steps"] + 2
    assert second["ledger"]["closed"]
    assert second["ledger"]["trained"] > first["ledger"]["trained"]


def test_a_broker_on_the_journal_of_a_finished_run_ends_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with a_broker_process(run, a_run_config(tmp_path)) as broker, a_crew(broker.endpoint) as crew:
        crew.wait_until_home()
        assert broker.wait() == 0
        before = read_summary(run)
        again = start_in_vain(run, broker)
        assert again.returncode == 0, again.stderr
        assert read_summary(run)["ledger"] == before["ledger"]


def test_a_run_that_failed_says_so_in_its_exit_code(tmp_path: Path) -> None:
    class Bad(FakeTrainer):
        def _vote(self) -> None:
            from schemas.messages import Voted

            if self.in_hand is not None:
                self.link.send(Voted(step=self.in_hand.step, ok=False, reason="the loss is not finite"))

    run = tmp_path / "run"
    roles = [role for role in STAGES if role is not Role.ACTOR_TRAIN]
    with a_broker_process(run, a_run_config(tmp_path)) as broker, a_crew(broker.endpoint, roles) as crew:
        crew.add(Role.ACTOR_TRAIN, peer=Bad())
        crew.wait_until_home()
        assert broker.wait() == 1
    failure = json.loads((run / "failure.json").read_text())
    assert failure["stage"] == "actor-train"
    assert "the loss is not finite" in failure["reason"]
    assert read_summary(run)["ended"] == "failed"
    assert read_summary(run)["ledger"]["closed"]


def start_in_vain(run: Path, broker: BrokerProcess, endpoint: str = "") -> subprocess.CompletedProcess[str]:
    """Another broker that should end by itself."""
    places = ("--run-directory", str(run), "--config", str(broker.config), "--endpoint", endpoint or broker.endpoint)
    command = [sys.executable, "-m", "broker", *places]
    return subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))


def lines_for_people(text: str) -> list[str]:
    """What is no log line."""
    return [line for line in text.splitlines() if not line.startswith("{")]


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:*"])
def test_an_endpoint_in_use_is_said_in_one_line(tmp_path: Path, endpoint: str) -> None:
    config = a_run_config(tmp_path)
    with a_broker_process(tmp_path / "run", config, endpoint) as broker:
        other = tmp_path / "other"
        other.mkdir()
        taken = (tmp_path / "run" / "endpoint").read_text()
        ended = start_in_vain(other, broker, taken)
        assert ended.returncode == 2, ended.stderr
        assert len(lines_for_people(ended.stderr)) == 1
        assert taken in ended.stderr
        assert broker.process is not None
        assert broker.process.poll() is None


def test_a_second_broker_on_one_run_is_refused_at_once(tmp_path: Path) -> None:
    with a_broker_process(tmp_path / "run", a_run_config(tmp_path)) as broker:
        ended = start_in_vain(tmp_path / "run", broker, "tcp://127.0.0.1:*")
        assert ended.returncode != 0
        assert "another broker" in ended.stderr


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"broker": {}}'])
def test_a_config_that_cannot_be_read_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-m", "broker", "--run-directory", str(tmp_path / "run"), "--config", str(config)]
    ended = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert len(lines_for_people(ended.stderr)) == 1
