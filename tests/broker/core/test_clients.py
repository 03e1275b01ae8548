"""Hello, silence and return."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.status import summary
from schemas import messages as wire
from schemas.edges import Role
from tests.broker.core.mill import ALL, Mill

MakeMill = Callable[..., Mill]


def answer(mill: Mill) -> wire.Refuse:
    """The newest refusal to a stranger."""
    message = mill.replies[-1]
    assert isinstance(message, wire.Refuse)
    return message


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"protocol": 99}, "protocol"),
        ({"schema": 1}, "schema"),
        ({"pipeline": "another"}, "pipeline"),
        ({"windows": {"turns": 4}}, "role"),
        ({"windows": {"nonsense": 4}}, "role"),
        ({"incarnation": "other"}, "name"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_for_good_with_its_reason(a_mill: MakeMill, wrong: dict[str, Any], reason: str) -> None:
    mill = a_mill()
    if "incarnation" in wrong:
        mill.say("env-1", wire.Hello(protocol=1, schema=0, role=Role.ENV, name="env-1", incarnation="x", pipeline=""), sender="env-1/y")
        assert answer(mill).fatal
        return
    mill.hello("env-1", **wrong)
    assert (answer(mill).reason, answer(mill).fatal) == (reason, True)
    assert mill.state.clients == {}


def test_a_name_keeps_its_role_and_a_run_has_one_trainer(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.hello("env-1", role=Role.REWARD, windows={})
    assert answer(mill).reason == "name"
    mill.hello("trainer-2", role=Role.ACTOR_TRAIN)
    assert (answer(mill).reason, answer(mill).fatal) == ("role", True)


def test_a_stranger_is_told_to_say_hello_first(a_mill: MakeMill) -> None:
    mill = a_mill()
    mill.incarnations["env-1"] = "a"
    mill.say("env-1", wire.Heartbeat())
    assert answer(mill) == wire.Refuse(reason="hello_first")


def test_a_bare_hello_gets_the_config_and_no_work(a_mill: MakeMill) -> None:
    mill = a_mill("rollout-1", "trainer", "sync")
    mill.hello("env-1", ready=False, windows={})
    assert mill.last("env-1", wire.Welcome).config["pipeline"]["name"] == "test"
    assert mill.all("env-1", wire.Deliver) == []
    mill.hello("env-1")
    assert mill.held("env-1", "tickets") != []


def test_after_a_restart_every_client_is_told_to_say_hello_and_keeps_what_it_holds(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    held = [d.lease for d in mill.held("env-1", "tickets")]
    mill.restart()
    mill.say("env-1", wire.Heartbeat())
    assert answer(mill).reason == "hello_first"
    mill.hello("env-1", holds=tuple(held))
    assert [d.lease for d in mill.held("env-1", "tickets")] == held
    assert mill.last("env-1", wire.Welcome).stale == ()


def test_what_a_returning_client_does_not_hold_goes_back_and_what_it_holds_in_error_is_named(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    first, *rest = mill.held("env-1", "tickets")
    mill.restart()
    mill.hello("env-1", holds=(first.lease, 999))
    assert mill.last("env-1", wire.Welcome).stale == (999,)
    again = [d for d in mill.held("env-1", "tickets") if d.lease != first.lease]
    assert {d.header.ticket for d in again} == {d.header.ticket for d in rest}
    assert all(d.header.attempt == 2 for d in again)


def test_leases_of_a_client_that_stays_away_go_back_only_after_the_grace(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    tickets = {d.header.ticket for d in mill.held("env-1", "tickets")}
    mill.restart()
    mill.hello("env-2")
    mill.wait(4, "env-2")
    assert mill.held("env-2", "tickets") == []
    mill.wait(2, "env-2")
    assert {d.header.ticket for d in mill.held("env-2", "tickets")} == tickets


def test_a_silent_client_is_suspected_then_given_up_and_its_work_is_delivered_anew(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, "env-2", schedule__max_lag=0)
    tickets = {d.header.ticket for name in ("env-1", "env-2") for d in mill.held(name, "tickets")}
    others = [name for name in mill.state.clients if name != "env-1"]
    mill.wait(4, *others)
    assert mill.state.clients["env-1"].suspect
    assert mill.state.clients["env-1"].connected
    mill.wait(7, *others)
    assert not mill.state.clients["env-1"].connected
    assert {d.header.ticket for d in mill.held("env-2", "tickets")} == tickets


def test_a_suspect_gets_no_new_work_until_it_is_heard_again(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "reward-1", "trainer", "sync")
    mill.wait(4, "env-1", "rollout-1")
    assert mill.state.clients["reward-1"].suspect
    mill.turn(mill.held("env-1", "tickets")[0], "env-1")
    mill.action("rollout-1", mill.turns_held()[0])
    mill.episode(mill.held("env-1", "tickets")[0], "env-1", mill.held("env-1", "actions")[0].lease)
    assert mill.held("reward-1", "episodes") == []
    mill.say("reward-1", wire.Heartbeat())
    assert len(mill.held("reward-1", "episodes")) == 1


def test_a_newer_process_of_a_name_fences_the_older(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    old = mill.identity("env-1")
    ticket = mill.held("env-1", "tickets")[0]
    mill.hello("env-1", incarnation="b")
    assert mill.last("env-1", wire.Welcome).epoch == 2
    assert mill.held("env-1", "tickets")[0].header.attempt == 2
    mill.say("env-1", wire.Commit(epoch=1, seq=1, acks=(ticket.lease,)), sender=old)
    assert (answer(mill).reason, answer(mill).fatal) == ("fenced", True)


def test_a_fenced_process_does_not_come_back_by_saying_hello(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.hello("env-1", incarnation="b")
    mill.hello("env-1", incarnation="a")
    assert (answer(mill).reason, answer(mill).fatal) == ("fenced", True)
    assert mill.state.clients["env-1"].incarnation == "b"
    assert mill.state.clients["env-1"].connected


def test_a_client_that_says_goodbye_gives_its_work_back_at_once(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, "env-2")
    tickets = {d.header.ticket for d in mill.held("env-1", "tickets")}
    mill.say("env-1", wire.Bye())
    assert tickets <= {d.header.ticket for d in mill.held("env-2", "tickets")}


def test_credit_bounds_what_a_client_holds(a_mill: MakeMill) -> None:
    mill = a_mill("rollout-1", "trainer", "sync", schedule__members=8)
    mill.hello("env-1", windows={"tickets": 3})
    assert len(mill.held("env-1", "tickets")) == 3
    mill.send("env-1", wire.Credit(queue="tickets", window=5))
    assert len(mill.held("env-1", "tickets")) == 5
    mill.send("env-1", wire.Credit(queue="tickets", window=1))
    mill.wait(1, "env-1", "rollout-1")
    assert len(mill.held("env-1", "tickets")) == 5


def test_fair_queues_fill_the_consumer_that_holds_fewest(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "env-2", "rollout-1", "trainer", "sync", schedule__members=8, schedule__max_lag=0)
    assert len(mill.held("env-1", "tickets")) == len(mill.held("env-2", "tickets")) == 4


def a_hosted(mill: Mill, *, ready: bool = True) -> None:
    """`env-0`, run by the host `host`."""
    mill.hello("host", slots=("cpu:0",), windows={})
    mill.hello("env-0", host="host", ready=ready, windows={})


@pytest.mark.parametrize("host", ["", "shed"])
def test_a_living_process_of_a_host_does_not_lose_its_name_to_a_stranger(a_mill: MakeMill, host: str) -> None:
    mill = a_mill()
    a_hosted(mill)
    mill.hello("env-0", incarnation="b", host=host)
    assert (answer(mill).reason, answer(mill).fatal) == ("name", True)
    assert (mill.state.clients["env-0"].incarnation, mill.state.clients["env-0"].connected) == ("a", True)


def test_a_hosts_own_restart_takes_its_name_at_once_and_a_silent_process_loses_it_to_anybody(a_mill: MakeMill) -> None:
    mill = a_mill()
    a_hosted(mill)
    mill.hello("env-0", incarnation="b", host="host")
    assert mill.state.clients["env-0"].incarnation == "b"
    mill.wait(4, "host")
    mill.hello("env-0", incarnation="c")
    assert mill.state.clients["env-0"].incarnation == "c"


@pytest.mark.parametrize(("name", "seconds"), [("env-0", 180), ("reward-0", 180), ("rollout-0", 600)])
def test_a_process_that_never_becomes_ready_ends_the_run_by_its_name(a_mill: MakeMill, name: str, seconds: int) -> None:
    mill = a_mill()
    mill.hello("host", slots=("cpu:0",), windows={})
    mill.hello(name, host="host", ready=False, windows={})
    mill.wait(seconds - 5, "host")
    assert mill.state.failure is None
    mill.wait(6, "host")
    assert mill.state.failure is not None
    assert mill.state.failure.stage == name
    assert f"did not become ready within {seconds} s" in mill.state.failure.reason
    assert f"logs/{name}.log" in mill.state.failure.advice


def test_what_earlier_incarnations_spent_stays_counted(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.say("env-1", wire.Heartbeat(stats={"busy_seconds": 5.0, "cpu_seconds": 2.0}))
    mill.hello("env-1", incarnation="b")
    mill.say("env-1", wire.Heartbeat(stats={"busy_seconds": 1.0}))
    mill.hello("env-1", incarnation="c")
    mill.say("env-1", wire.Heartbeat(stats={"busy_seconds": 0.5}))
    spent = summary(mill.state, mill.now)["time"]["env"]
    assert (spent["busy_seconds"], spent["cpu_seconds"]) == (6.5, 2.0)


def test_a_process_that_asks_again_and_again_who_serves_is_no_progress(a_mill: MakeMill) -> None:
    mill = a_mill()
    mill.hello("env-1", ready=False)
    began = mill.state.progress_at
    for _ in range(5):
        mill.tick(2.0)
        mill.hello("env-1", ready=False)
    assert mill.state.progress_at == began
    mill.hello("env-1")
    assert mill.state.progress_at == mill.now


def test_what_a_process_waited_for_is_not_told_of_its_successor(a_mill: MakeMill) -> None:
    mill = a_mill("env-1")
    mill.say("env-1", wire.Heartbeat(waiting="on rollout for 3 actions"))
    mill.hello("env-1", incarnation="b", ready=False)
    assert mill.state.clients["env-1"].waiting == ""
