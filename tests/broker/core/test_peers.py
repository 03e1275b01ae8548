"""Who serves blobs, who may fetch, and whom a receiver is told to ask."""

from __future__ import annotations

from collections.abc import Callable

from broker.core.events import Revoked
from broker.core.peers import SOURCES_MAX
from schemas import messages as wire
from schemas.messages import Source
from tests.broker.core.mill import ALL, Mill

MakeMill = Callable[..., Mill]


def serve(mill: Mill, host: str, key: str = "") -> None:
    """A host comes up and serves."""
    mill.hello(host, windows={}, blobs=f"tcp://{host}:1", public=key or f"key of {host}", roles=("env",))


def endpoints(sources: tuple[Source, ...]) -> list[str]:
    return [source.endpoint.removeprefix("tcp://").removesuffix(":1") for source in sources]


def test_a_welcome_names_who_serves(a_mill: MakeMill) -> None:
    mill = a_mill()
    serve(mill, "host-a")
    mill.hello("rollout-1", windows={})
    assert mill.last("rollout-1", wire.Welcome).sources == (Source("tcp://host-a:1", "key of host-a"),)


def test_without_a_server_nobody_is_named(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    assert mill.last("rollout-1", wire.InstallOrder).sources == ()
    assert mill.all("sync", wire.Peers) == []


def test_ones_own_host_is_not_asked(a_mill: MakeMill) -> None:
    mill = a_mill()
    for host in ("host-a", "host-b"):
        serve(mill, host)
    mill.hello("rollout-1", windows={}, host="host-b")
    assert endpoints(mill.last("rollout-1", wire.Welcome).sources) == ["host-a"]


def test_hosts_that_hold_a_version_go_before_its_producer(a_mill: MakeMill) -> None:
    mill = a_mill()
    for host in ("host-a", "host-b", "host-c"):
        serve(mill, host)
    mill.hello("trainer", host="host-c")
    mill.hello("sync", host="host-c")
    mill.hello("rollout-1", windows={}, host="host-b")
    mill.publish(0)
    assert endpoints(mill.last("rollout-1", wire.InstallOrder).sources) == ["host-c", "host-a"]
    mill.install("rollout-1")
    mill.hello("rollout-2", windows={}, host="host-a")
    assert endpoints(mill.last("rollout-2", wire.InstallOrder).sources) == ["host-b", "host-c"]


def test_receivers_start_at_different_holders(a_mill: MakeMill) -> None:
    mill = a_mill()
    mill.hello("trainer")
    mill.hello("sync")
    mill.publish(0)
    for number in range(6):
        serve(mill, f"host-{number}")
        mill.hello(f"rollout-{number}", windows={}, host=f"host-{number}")
        mill.install(f"rollout-{number}")
    first = set()
    for number in range(6, 12):
        mill.hello(f"rollout-{number}", windows={})
        first.add(endpoints(mill.last(f"rollout-{number}", wire.InstallOrder).sources)[0])
    assert len(first) > 1


def test_no_more_sources_are_named_than_help(a_mill: MakeMill) -> None:
    mill = a_mill()
    for number in range(2 * SOURCES_MAX):
        serve(mill, f"host-{number}")
    mill.hello("rollout-1", windows={})
    assert len(mill.last("rollout-1", wire.Welcome).sources) == SOURCES_MAX


def test_who_serves_hears_of_every_new_key(a_mill: MakeMill) -> None:
    mill = a_mill()
    serve(mill, "host-a")
    assert mill.last("host-a", wire.Peers).keys == ("key of host-a",)
    mill.hello("rollout-1", windows={}, ready=False, public="another key")
    assert mill.last("host-a", wire.Peers).keys == ("another key", "key of host-a")
    said = len(mill.all("host-a", wire.Peers))
    mill.hello("rollout-2", windows={}, public="another key")
    assert len(mill.all("host-a", wire.Peers)) == said, "a known key is no news"


def test_a_server_that_comes_back_hears_it_again(a_mill: MakeMill) -> None:
    mill = a_mill()
    serve(mill, "host-a")
    said = len(mill.all("host-a", wire.Peers))
    mill.restart()
    serve(mill, "host-a")
    assert len(mill.all("host-a", wire.Peers)) == said + 1


def test_a_revoked_key_is_taken_off_everyones_list(a_mill: MakeMill) -> None:
    mill = a_mill()
    serve(mill, "host-a")
    mill.hello("rollout-1", windows={}, public="its key")
    mill.feed(Revoked(key=""))  # nobody's but those who came in without one: all of them
    assert mill.state.peer_keys == {}
    serve(mill, "host-b")
    assert mill.last("host-b", wire.Peers).keys == ("key of host-b",)


def test_weight_sync_hears_whether_versions_cross(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    serve(mill, "host-a")
    assert endpoints(mill.last("sync", wire.Peers).sources) == ["host-a"]
    mill.say("host-a", wire.Bye())
    assert mill.last("sync", wire.Peers).sources == ()


def test_a_receipts_bytes_and_seconds_stand_in_the_next_steps_metrics(a_mill: MakeMill) -> None:
    from broker.core.actions import StepMetrics

    mill = a_mill(*ALL)
    mill.publish(1)
    found = {"bytes": 10.0, "full_bytes": 100.0, "fetch_seconds": 0.5}
    mill.send("rollout-1", wire.Receipt(lineage=0, number=1, digest="w1", seconds=0.7, metrics=found))
    tickets = [d for d in mill.held("env-1", "tickets") if d.header.purpose == "train"][:2]
    for ticket, reward in zip(tickets, (0.0, 1.0), strict=True):
        mill.score(mill.play(ticket, "env-1", 1), reward)
    for sample in mill.held("reference-1", "scored"):
        mill.refer(sample)
    mill.vote(1)
    mill.send("trainer", wire.CheckpointSaved(step=1))
    (line,) = [action.metrics for action in mill.actions if isinstance(action, StepMetrics)]
    assert line["install/receipts"] >= 2
    assert (line["install/bytes"], line["install/full_bytes"], line["install/fetch_seconds"]) == (10.0, 100.0, 0.5)
    assert line["install/seconds"] == 0.7
    assert mill.state.install_metrics == {}


def test_a_replica_whose_files_still_come_is_not_late(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.publish(1)
    for megabytes in range(1, 30):
        mill.say("rollout-1", wire.Heartbeat(stats={"fetched_bytes_total": 1e6 * megabytes}))
        mill.wait(9, *ALL)
    assert mill.state.clients["rollout-1"].offered == 1
    assert mill.state.failure is None
    mill.wait(250, *ALL)
    assert mill.state.clients["rollout-1"].installed is None, "silent for minutes: unrouted"
