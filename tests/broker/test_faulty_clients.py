"""Clients that die, freeze, hang, are slow or lose their line, in whole runs with a real broker: no ticket is lost, none counts twice."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from broker.core.actions import Send
from broker.core.events import Received, Started, decode_event
from broker.core.state import State
from broker.core.step import begin, step
from schemas.edges import STAGES, Role
from schemas.messages import Commit, Refuse
from stages.service.stage import Delivery, Ready
from tests.broker.folding import entries_of
from tests.broker.stubborn_reward import a_stubborn_reward
from tests.broker.test_restarts import check_that_every_ticket_ended_once
from tests.skeleton.broker_process import a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.cutting_proxy import a_cutting_proxy
from tests.skeleton.peer import CrashError
from tests.skeleton.stages import FakeReward, FakeTrainer
from tests.skeleton.waiting import until

OTHERS = [role for role in STAGES if role is not Role.REWARD]
LARGE = 4 << 20
"""Bytes of a record of which the kernel's buffers hold a small part."""
HELD = 3
"""Episodes of the evaluation that a run begins with."""


class Told:
    """What a fold of a run's journal tells of one client."""

    def __init__(self, run: Path, client: str) -> None:
        self.refusals: list[str] = []
        self.scored: list[int] = []
        """Tickets of the samples that it put, and that were taken."""
        state: State | None = None
        for entry in entries_of(run):
            event = decode_event(entry.event)
            if isinstance(event, Started):
                state = begin(event, entry.now)
                continue
            assert state is not None
            before = self._next_seq(state, client)
            refused = [
                action.message.reason
                for action in step(state, event, entry.now)
                if isinstance(action, Send) and action.client == client and isinstance(action.message, Refuse)
            ]
            self.refusals += refused
            of_it = isinstance(event, Received) and event.sender.startswith(f"{client}/") and self._next_seq(state, client) == before + 1
            if of_it and isinstance(event.message, Commit) and not refused:
                self.scored += [header.ticket or 0 for header in event.message.puts]
        assert state is not None
        self.state = state

    @staticmethod
    def _next_seq(state: State, client: str) -> int:
        return state.clients[client].next_seq if client in state.clients else 0


def test_what_a_killed_process_had_in_its_pipe_is_made_again_by_another(tmp_path: Path) -> None:
    """Its commits have left it and lie in buffers when it dies: the broker has none of them whole, and nobody acknowledged any."""
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "broker.dead_s=1.5")
    with (
        a_broker_process(run, config) as broker,
        a_crew(broker.endpoint, OTHERS) as crew,
        a_stubborn_reward(tmp_path, broker.endpoint, size=LARGE) as victim,
    ):
        until(lambda: victim.count("held") >= HELD, "it holds episodes", crew.story)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        victim.go()
        until(lambda: victim.count("answered") >= HELD, "it has sent its answers")
        victim.kill()
        broker.process.send_signal(signal.SIGCONT)
        crew.add(Role.REWARD, "reward-b")
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)
    told = Told(run, "reward-a")
    assert told.scored == []
    assert told.state.queues["episodes"].redeliveries >= HELD
    assert told.state.ledger.failed == {}


def test_a_frozen_process_that_answers_late_is_told_and_counts_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "broker.dead_s=1.5", "schedule.steps=6")
    with (
        a_broker_process(run, config) as broker,
        a_crew(broker.endpoint, OTHERS) as crew,
        a_stubborn_reward(tmp_path, broker.endpoint) as victim,
    ):
        until(lambda: victim.count("held") >= HELD, "it holds episodes", crew.story)
        victim.signal(signal.SIGSTOP)
        until(lambda: "client_lost" in broker.log(), "the broker gives it up", broker.log)
        other = crew.add(Role.REWARD, "reward-b")
        until(lambda: other.peer.answered >= HELD, "another has done its work", crew.story)
        victim.go()
        victim.signal(signal.SIGCONT)
        crew.wait_until_home()
        assert broker.wait() == 0
        until(lambda: victim.exit_code is not None, "it is sent home")
        assert victim.exit_code == 0
    check_that_every_ticket_ended_once(run)
    told = Told(run, "reward-a")
    assert "stale_lease" in told.refusals  # at least once: the run may end before it has asked about the others
    assert not set(told.scored) & set(Told(run, "reward-b").scored)


def test_a_hung_stage_loses_its_leases_though_its_sockets_still_answer(tmp_path: Path) -> None:
    """libzmq's own thread goes on, the stage's stands still: only the latter renews leases."""

    class Hung(FakeReward):
        moves = threading.Event()

        def answer(self, delivery: Delivery) -> None:
            self.moves.wait()
            super().answer(delivery)

    run = tmp_path / "run"
    with a_broker_process(run, a_run_config(tmp_path, "broker.dead_s=1.5")) as broker, a_crew(broker.endpoint, OTHERS) as crew:
        hung = Hung()
        try:
            crew.add(Role.REWARD, "reward-a", peer=hung)
            until(lambda: "client_lost" in broker.log(), "the broker gives it up", broker.log)
            other = crew.add(Role.REWARD, "reward-b")
            until(lambda: other.peer.answered >= HELD, "another has done its work", crew.story)
        finally:
            hung.moves.set()
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)
    assert "stale_lease" in Told(run, "reward-a").refusals


def test_a_slow_consumer_holds_its_producers_back_within_the_budget_and_nothing_is_dropped(tmp_path: Path) -> None:
    run, budget = tmp_path / "run", 20_000
    config = a_run_config(
        tmp_path, f"broker.budget_bytes={budget}", "schedule.steps=6", "schedule.max_lag=4", "schedule.drop_uniform=false"
    )
    with a_broker_process(run, config) as broker, a_crew(broker.endpoint, OTHERS) as crew:
        slow = FakeReward()
        slow.slow = True
        crew.add(Role.REWARD, peer=slow)
        env = crew.members["env-0"].peer
        until(lambda: len(slow.held) >= HELD and not env.held, "all that may begin has begun", crew.story)
        slow.slow = False
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)
    most = most_charged(run)
    assert budget / 2 < most <= budget
    ledger = Told(run, "reward-0").state.ledger
    assert ledger.failed == ledger.dropped == {}
    assert ledger.trained == 6 * 2 * 2


def most_charged(run: Path) -> int:
    """Bytes of the one budget that were ever in use."""
    most, state = 0, None
    for entry in entries_of(run):
        event = decode_event(entry.event)
        if isinstance(event, Started):
            state = begin(event, entry.now)
            continue
        assert state is not None
        step(state, event, entry.now)
        most = max(most, state.ledger.charged)
    return most


def test_answers_lost_with_their_line_make_no_sample_count_twice(tmp_path: Path) -> None:
    """What was taken and whose acknowledgement was cut off is sent again; the trainer gets every sample once."""
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "schedule.steps=6")
    with (
        a_broker_process(run, config, "tcp://127.0.0.1:*") as broker,
        a_cutting_proxy((run / "endpoint").read_text()) as proxy,
        a_crew(proxy.endpoint) as crew,
    ):
        for answers in range(20, 140, 20):
            crew.wait_for_answers(answers)
            proxy.cut()
        crew.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)
    trainer = crew.members["actor-train-0"].peer
    assert isinstance(trainer, FakeTrainer)
    assert len(trainer.trained) == len(set(trainer.trained)) == 6 * 2 * 2


def test_a_record_that_kills_every_consumer_becomes_a_dead_letter_and_the_queue_flows_on(tmp_path: Path) -> None:
    class Poisoned(FakeReward):
        def hello(self) -> Ready:
            return Ready(windows={"episodes": 1})  # what else it held would be delivered in vain with it

        def answer(self, delivery: Delivery) -> None:
            if delivery.header.ticket == 2:
                raise CrashError("an episode that no verifier survives")
            super().answer(delivery)

    run = tmp_path / "run"
    config = a_run_config(tmp_path, "broker.max_deliveries=3")
    with a_broker_process(run, config) as broker, a_crew(broker.endpoint, OTHERS) as crew:
        lives = 0

        def revived() -> bool:
            """As its host would: another process of that name for each that died. True once the run is over."""
            nonlocal lives
            member = crew.members.get("reward-0")
            if member is None or (not member.at_work and isinstance(member.error, CrashError)):
                lives += 1
                crew.add(Role.REWARD, peer=Poisoned())
            return broker.process is not None and broker.process.poll() is not None

        until(revived, "the run ends", crew.story)
        crew.wait_until_home()
        assert broker.wait() == 0
    state = Told(run, "reward-0").state
    (letter,) = state.dead.values()
    assert lives == 4
    assert [attempt.client for attempt in letter.history] == ["reward-0"] * 3
    assert state.ledger.failed == {"dead_letter": 1}
    assert state.ledger.issued == state.ledger.trained + state.ledger.evaluated + sum(state.ledger.dropped.values()) + 1
    assert state.trainer.step == 3
