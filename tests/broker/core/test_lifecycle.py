"""Life of a run: its start, its end, its stop, its ledger, its fleet."""

from collections.abc import Callable

import pytest

from broker.core.ledger import in_flight
from broker.core.state import Phase
from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill

MakeMill = Callable[..., Mill]


def all_leave(mill: Mill) -> None:
    """Everybody who was sent home goes."""
    for name, client in list(mill.state.clients.items()):
        if client.connected:
            mill.say(name, wire.Bye(reason="run_end"))


def closes(mill: Mill) -> bool:
    """Every ticket has ended, once."""
    ledger = mill.state.ledger
    ended = ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + sum(ledger.failed.values())
    return ledger.issued == ended and in_flight(mill.state) == 0 and ledger.charged == 0 and ledger.provisional == 0


def test_a_run_ends_at_its_steps_after_its_last_evaluation(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__steps=2, evaluation__at_end=True, evaluation__problems=1)
    for step in (1, 2):
        mill.to_ready([1.0, 0.0], version=step - 1)
        mill.train(step)
    assert mill.state.phase is Phase.FINISHING
    problem = mill.held("env-1", "tickets")[0]
    assert (problem.header.purpose, mill.state.tickets[problem.header.ticket].version) == ("eval", 2)
    mill.score(mill.play(problem, version=2), 1.0)
    assert mill.state.phase is Phase.CLOSING
    assert all(mill.all(name, wire.Drain) for name in ALL)
    all_leave(mill)
    assert mill.state.phase is Phase.CLOSED
    assert mill.end is not None
    assert mill.end.failure is None
    assert closes(mill)
    assert (mill.state.ledger.trained, mill.state.ledger.evaluated) == (4, 1)


def test_a_stop_admits_nothing_more_and_ends_every_ticket(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__members=8, evaluation__at_start=True, evaluation__problems=500, broker__budget_bytes=192 * 26 * 20)
    mill.play(mill.held("env-1", "tickets")[0])
    mill.to_ready([])
    issued = mill.state.ledger.issued
    mill.say("env-1", wire.StopAsked(reason="signal"))
    mill.wait(2, *ALL)
    assert mill.state.ledger.issued == issued
    assert mill.state.ledger.dropped == {"run_end": issued}
    assert all(mill.all(name, wire.Drain) for name in ALL)
    all_leave(mill)
    assert mill.state.phase is Phase.CLOSED
    assert closes(mill)


def test_a_stop_lets_the_step_in_hand_be_committed(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    mill.say("env-1", wire.StopAsked())
    assert mill.all("trainer", wire.Drain) == []
    mill.vote(1)
    mill.send("trainer", wire.CheckpointSaved(step=1))
    assert mill.all("trainer", wire.Drain) != []
    assert mill.state.ledger.trained == 2


def test_a_stop_does_not_wait_for_stages_that_stay(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.say("env-1", wire.StopAsked())
    for _ in range(50):
        mill.tick(0.1)
    assert mill.state.phase is Phase.CLOSED


def test_a_stopped_run_goes_on_when_its_broker_starts_again(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    mill.train(1)
    mill.say("env-1", wire.StopAsked())
    all_leave(mill)
    assert mill.state.phase is Phase.CLOSED
    mill.restart()
    assert mill.state.phase is Phase.STARTING
    for name in ("env-1", "rollout-1", "reward-1", "reference-1", "sync"):
        mill.hello(name, incarnation="b")
    mill.hello("trainer", incarnation="b", resume_step=1)
    mill.publish(1)
    mill.install("rollout-1")
    mill.to_ready([1.0, 0.0], version=1)
    assert mill.last("trainer", wire.Plan).step == 2


def test_a_failed_run_goes_on_when_its_broker_starts_again(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, "host")
    mill.send("host", wire.ProcessExited(name="reward-1", code=3, final=True, restarts=5))
    all_leave(mill)
    assert mill.state.phase is Phase.CLOSED
    mill.restart()
    assert mill.state.phase is Phase.STARTING
    assert mill.state.failure is None


@pytest.mark.parametrize("final", [False, True])
def test_only_a_final_exit_ends_the_run_and_it_names_the_stage(a_mill: MakeMill, *, final: bool) -> None:
    mill = a_mill(*ALL, "host")
    mill.send("host", wire.ProcessExited(name="reward-1", code=3, final=final, restarts=5, last_lines=("it broke",)))
    assert not mill.state.clients["reward-1"].connected
    failure = mill.state.failure
    assert (failure is not None) == final
    if failure is not None:
        assert (failure.stage, failure.last_lines) == ("reward-1", ("it broke",))
        assert "5 restarts" in failure.reason
        all_leave(mill)
        assert mill.end is not None
        assert mill.end.failure == failure
        assert closes(mill)


def test_who_comes_when_the_run_is_over_is_sent_home(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.say("env-1", wire.StopAsked())
    mill.hello("env-2")
    assert mill.last("env-2", wire.Drain).reason == "run_end"
    assert mill.held("env-2", "tickets") == []


def test_room_is_charged_at_admission_and_given_back_at_the_ending(a_mill: MakeMill) -> None:
    per_ticket = 192 * 26
    mill = a_mill(*ALL, schedule__members=2, schedule__groups_per_step=4, broker__budget_bytes=per_ticket * 5)
    assert mill.state.ledger.charged == per_ticket * 4  # a third group would not fit
    mill.to_ready([1.0, 0.0])
    assert mill.state.ledger.charged == per_ticket * 4


def test_every_ticket_ends_once_and_long_ones_are_seen_to(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__steps=1, broker__member_retries=0, schedule__members=3, schedule__max_lag=0)
    lost, *rest = mill.held("env-1", "tickets")
    mill.commit("env-1", fails=[wire.Failure(lease=lost.lease, boundary="env", reason="told so")])
    for ticket, reward in zip(rest, (1.0, 0.0), strict=True):
        mill.score(mill.play(ticket), reward)
    for sample in mill.held("reference-1", "scored"):
        mill.refer(sample)
    mill.train(1)
    all_leave(mill)
    assert closes(mill)
    assert mill.state.ledger.lengths == {"failed(env)": {0: 1}, "trained": {4: 2}}


def test_a_host_gets_the_whole_fleet_on_its_slots_and_starts_only_what_does_not_run(a_mill: MakeMill) -> None:
    mill = a_mill(stages__rollout__replicas=3)
    mill.hello("host", slots=("cpu:0", "cpu:1", "cpu:2"))  # the third replica waits for a slot of its own
    orders = {order.name: order.slots for order in mill.all("host", wire.StartProcess)}
    assert orders == {
        "env-0": (), "rollout-0": ("cpu:0",), "rollout-1": ("cpu:1",), "reward-0": (),
        "reference-0": ("cpu:2",), "actor-train-0": ("cpu:2",), "weight-sync-0": (),
    }  # fmt: skip
    mill.restart()
    mill.hello("host", slots=("cpu:0", "cpu:1", "cpu:2"), running={name: 1 for name in orders if name != "env-0"})
    assert [order.name for order in mill.all("host", wire.StartProcess)[len(orders) :]] == ["env-0"]


def test_without_a_kl_no_reference_process_is_wanted(a_mill: MakeMill) -> None:
    mill = a_mill(algorithm__kl_coefficient=0.0)
    mill.hello("host", slots=("cpu:0",))
    assert "reference-0" not in {order.name for order in mill.all("host", wire.StartProcess)}


def test_a_host_ends_its_processes_at_the_end_of_the_run(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, "host")
    mill.say("env-1", wire.StopAsked())
    assert mill.last("host", wire.StopProcess).name == ""
