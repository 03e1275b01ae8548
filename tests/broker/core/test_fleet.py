"""Several hosts: who runs what, what becomes of it when a host dies, comes late, or comes back."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.core.fleet import is_orphan
from broker.core.state import Failed
from schemas import messages as wire
from tests.broker.core.mill import Mill

MakeMill = Callable[..., Mill]
TWO = ("cpu:0", "cpu:1")


def the_head(mill: Mill, *, slots: tuple[str, ...] = TWO, **fields: Any) -> None:
    mill.hello("host-head", slots=slots, windows={}, place="m0", **fields)


def a_far_host(mill: Mill, name: str = "host-far", *, slots: tuple[str, ...] = TWO, **fields: Any) -> None:
    said = {"directory": f"/far/{name}", "place": name, "windows": {}, **fields}
    mill.hello(name, slots=slots, **said)


def ordered(mill: Mill, host: str) -> dict[str, tuple[str, ...]]:
    """Names and slots of all that a host was told to start."""
    return {order.name: order.slots for order in mill.all(host, wire.StartProcess)}


def homes(mill: Mill) -> dict[str, str]:
    return {process.name: process.host for process in mill.state.processes.values()}


def come_up(mill: Mill) -> None:
    """Every process that was ordered says hello from its host."""
    for process in list(mill.state.processes.values()):
        if process.host and process.role in ("env", "reward"):
            mill.hello(process.name, host=process.host, windows={})


def failure_of(mill: Mill) -> Failed | None:
    return mill.state.failure


def notes(mill: Mill, kind: str) -> list[dict[str, float | int | str]]:
    return [note.numbers for note in mill.notes if note.kind == kind]


def test_nothing_is_started_before_the_hosts_are_there_that_the_run_waits_for(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=2)
    the_head(mill)
    assert ordered(mill, "host-head") == {}
    a_far_host(mill)
    head, far = ordered(mill, "host-head"), ordered(mill, "host-far")
    assert {"actor-train-0", "weight-sync-0"} <= head.keys()
    assert {name for name in (*head, *far) if name.startswith("env")} == {"env-0", "env-1"}
    assert any(name.startswith("env") for name in far)
    assert not head.keys() & far.keys()


def test_what_writes_into_the_run_directory_waits_for_a_host_that_has_it(a_mill: MakeMill) -> None:
    mill = a_mill()
    a_far_host(mill)
    assert ordered(mill, "host-far") == {}  # nor is anything else started that could do nothing
    the_head(mill)
    assert homes(mill)["actor-train-0"] == homes(mill)["weight-sync-0"] == "host-head"
    assert ordered(mill, "host-far")


def test_a_role_that_somebody_serves_by_hand_needs_no_host(a_mill: MakeMill) -> None:
    mill = a_mill()
    a_far_host(mill)
    mill.hello("trainer")
    assert ordered(mill, "host-far") == {}
    mill.hello("sync")
    mill.tick()
    assert "env-0" in ordered(mill, "host-far")
    assert homes(mill)["actor-train-0"] == ""


def test_a_host_runs_only_the_roles_that_it_allows(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=3, stages__reward__replicas=3)
    the_head(mill)
    a_far_host(mill, roles=("env",))
    assert {name.rpartition("-")[0] for name in ordered(mill, "host-far")} == {"env"}


def test_a_late_host_gets_more_replicas_where_they_are_allowed(a_mill: MakeMill) -> None:
    mill = a_mill(stages__rollout__replicas_max=3)
    the_head(mill)
    a_far_host(mill, slots=("gpu:0", "gpu:1", "gpu:2", "gpu:3"))
    assert ordered(mill, "host-far") == {"rollout-1": ("gpu:0",), "rollout-2": ("gpu:1",)}


def test_two_hosts_of_one_slot_name_hold_its_grant_at_once(a_mill: MakeMill) -> None:
    mill = a_mill()
    mill.hello("trainer", host="host-head", slots=("cpu:0",))
    mill.hello("reference-1", host="host-far", slots=("cpu:0",))
    for name in ("trainer", "reference-1"):
        mill.send(name, wire.GrantAsked())
        assert len(mill.all(name, wire.Grant)) == 1


def test_a_host_that_is_silent_for_good_loses_its_processes_to_another_once_they_are_silent_too(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=2)
    the_head(mill)
    a_far_host(mill)
    come_up(mill)
    (moved,) = [name for name, host in homes(mill).items() if host == "host-far" and name.startswith("env")]
    (stayed,) = {"env-0", "env-1"} - {moved}
    at_home = [name for name, host in homes(mill).items() if host == "host-head" and name in mill.state.clients]
    mill.wait(15, "host-head", moved, *at_home)
    assert homes(mill)[moved] == "host-far"  # its host is given up, but it is heard of itself
    mill.wait(13, "host-head", *at_home)
    assert homes(mill)[moved] == "host-head"
    assert {"process": moved, "host": "host-head", "before": "host-far", "slots": ""} in notes(mill, "process_moved")
    assert moved in ordered(mill, "host-head")
    assert homes(mill)[stayed] == "host-head"


def test_a_host_that_says_goodbye_gives_its_processes_away_at_once(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2)
    the_head(mill)
    a_far_host(mill)
    lost = [name for name, host in homes(mill).items() if host == "host-far"]
    mill.say("host-far", wire.Bye(reason="stopped"))
    assert lost
    assert {homes(mill)[name] for name in lost if not name.startswith("rollout")} <= {"host-head"}


def gone(mill: Mill, *, back: float = 30.0) -> str:
    """A far host with an env is cut off until it is given up; gives that env's name."""
    the_head(mill)
    a_far_host(mill)
    come_up(mill)
    moved = next(name for name, host in homes(mill).items() if host == "host-far" and name in mill.state.clients)
    at_home = [name for name, host in homes(mill).items() if host == "host-head" and name in mill.state.clients]
    mill.wait(back, "host-head", *at_home)
    assert homes(mill)[moved] == "host-head"
    return moved


def test_a_host_that_comes_back_is_told_to_stop_what_it_has_lost(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=2)
    moved = gone(mill)
    a_far_host(mill, running={moved: 7})
    assert mill.last("host-far", wire.StopProcess).name == moved


@pytest.mark.parametrize("incarnation", ["a", "b"])
def test_a_process_that_was_moved_is_refused_from_its_old_host_and_its_exit_there_ends_nothing(a_mill: MakeMill, incarnation: str) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=2)
    moved = gone(mill)
    mill.hello(moved, host="host-far", incarnation=incarnation, windows={})
    refusal = mill.replies[-1]
    assert isinstance(refusal, wire.Refuse)
    assert (refusal.reason, refusal.fatal) == ("fenced", True)
    mill.hello(moved, host="host-head", incarnation="c", windows={})
    a_far_host(mill, running={moved: 7})
    mill.send("host-far", wire.ProcessExited(name=moved, code=3, final=True))
    assert failure_of(mill) is None
    assert mill.state.clients[moved].connected


def test_a_host_back_in_time_keeps_its_processes(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=2)
    the_head(mill)
    a_far_host(mill)
    before = homes(mill)
    mill.wait(6, "host-head")
    a_far_host(mill, running={name: 1 for name, host in before.items() if host == "host-far"})
    mill.wait(20, "host-head", "host-far")
    assert homes(mill) == before
    assert len(mill.all("host-far", wire.StartProcess)) == sum(host == "host-far" for host in before.values())


def test_the_trainers_host_dead_for_good_ends_the_run_with_what_to_do(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2)
    the_head(mill)
    a_far_host(mill)
    mill.wait(65, "host-far")
    assert failure_of(mill) is None
    mill.wait(10, "host-far")
    failure = failure_of(mill)
    assert failure is not None
    assert failure.stage == "actor-train-0"
    assert "host-head is gone (silent for" in failure.reason
    assert "no other host reaches" in failure.reason
    assert "--resume" in failure.advice


def test_a_role_that_a_host_cannot_run_goes_to_another_and_the_last_one_ends_the_run(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=2)
    the_head(mill)
    a_far_host(mill)
    (far,) = [name for name in ordered(mill, "host-far") if name.startswith("env")]
    why = ("stages.env: model directory /models/m is not on this host",)
    mill.send("host-far", wire.ProcessExited(name=far, code=2, final=True, last_lines=why))
    assert failure_of(mill) is None
    assert homes(mill)[far] == "host-head"
    assert notes(mill, "host_unfit")[0]["why"] == why[0]
    mill.send("host-head", wire.ProcessExited(name=far, code=2, final=True, last_lines=why))
    failure = failure_of(mill)
    assert failure is not None
    assert failure.last_lines == why


def test_of_two_machines_of_one_name_the_second_is_turned_away(a_mill: MakeMill) -> None:
    mill = a_mill()
    a_far_host(mill)
    a_far_host(mill, incarnation="b", place="another")
    refusal = mill.replies[-1]
    assert isinstance(refusal, wire.Refuse)
    assert (refusal.reason, "another machine" in refusal.detail) == ("name", True)
    a_far_host(mill, incarnation="c")  # its own next start
    assert mill.state.clients["host-far"].incarnation == "c"


def test_other_user_code_on_another_host_is_refused_by_the_names_of_both(a_mill: MakeMill) -> None:
    mill = a_mill()
    mill.hello("env-0", host="host-head", user_code={"mine:Env": "aa"})
    mill.hello("env-1", host="host-far", user_code={"mine:Env": "bb"})
    refusal = mill.replies[-1]
    assert isinstance(refusal, wire.Refuse)
    assert (refusal.reason, refusal.fatal) == ("user_code", True)
    for word in ("mine:Env", "host-head", "host-far", "aa", "bb"):
        assert word in refusal.detail
    mill.hello("env-2", host="host-far", user_code={"mine:Env": "aa", "other:f": "cc"})
    assert mill.state.clients["env-2"].connected


def test_no_process_is_an_orphan_while_its_host_may_come_back(a_mill: MakeMill) -> None:
    mill = a_mill()
    the_head(mill)
    mill.restart()
    mill.wait(9)
    assert not any(is_orphan(mill.state, process, mill.now) for process in mill.state.processes.values())
    the_head(mill)
    assert mill.state.clients["host-head"].connected


def test_what_moved_is_in_the_journal_as_the_live_broker_had_it(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__env__replicas=2)
    gone(mill)
    mill.check_fold()


def test_a_host_started_anew_with_another_offer_gets_what_fits_it(a_mill: MakeMill) -> None:
    mill = a_mill(host__wait_for=2, stages__rollout__replicas=2)
    the_head(mill)
    a_far_host(mill, slots=("gpu:0", "gpu:1"))
    assert {ordered(mill, "host-far")[name] for name in ordered(mill, "host-far") if name.startswith("rollout")} <= {("gpu:0",), ("gpu:1",)}
    a_far_host(mill, slots=("gpu:4", "gpu:5"), incarnation="b")
    assert all(
        process.slots[0] in ("gpu:4", "gpu:5") for process in mill.state.processes.values() if process.host == "host-far" and process.slots
    )
    a_far_host(mill, slots=("gpu:4", "gpu:5"), roles=("reward",), incarnation="c")
    assert {name.rpartition("-")[0] for name, host in homes(mill).items() if host == "host-far"} <= {"reward"}
