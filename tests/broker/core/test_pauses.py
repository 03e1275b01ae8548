"""A broker or a machine that stood still: its leases outlive that once, and end as ever afterwards."""

from collections.abc import Callable

from broker.core.events import Tick
from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill

MakeMill = Callable[..., Mill]


def pause(mill: Mill, seconds: float) -> None:
    """Nothing happens for so long; then the tick comes that was due at its beginning."""
    mill.now += seconds
    mill.feed(Tick(late_s=seconds))


def test_a_pause_ends_no_lease_and_gives_nobody_up(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, broker__lease_s={"episodes": 20.0})
    mill.play(mill.held("env-1", "tickets")[0])
    held = dict(mill.state.leases)
    pause(mill, 3600.0)
    assert mill.state.leases == held
    assert all(client.connected for client in mill.state.clients.values())
    mill.wait(4, *ALL)
    assert mill.state.leases.keys() == held.keys()
    assert not any(client.suspect for client in mill.state.clients.values())
    assert [note.numbers["seconds"] for note in mill.notes if note.kind == "paused"] == [3600.0]


def test_after_one_grace_period_leases_end_as_ever(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, broker__lease_s={"episodes": 20.0})
    late = mill.play(mill.held("env-1", "tickets")[0])
    pause(mill, 60.0)
    mill.wait(mill.state.settings.grace_s + 1, *ALL)
    assert wire.Abort(lease=late.lease) in mill.all("reward-1", wire.Abort)
    assert [d.delivery for d in mill.held("reward-1", "episodes")] == [2]


def test_who_stays_silent_after_a_pause_is_given_up_after_one_grace_period(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    others = [name for name in ALL if name != "reward-1"]
    pause(mill, 60.0)
    assert mill.state.clients["reward-1"].connected
    mill.wait(mill.state.settings.grace_s + 1, *others)
    assert not mill.state.clients["reward-1"].connected
    assert all(mill.state.clients[name].connected for name in others)


def test_a_lease_that_had_longer_to_go_is_not_made_longer(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    deadlines = {lease.id: lease.deadline for lease in mill.state.leases.values()}
    pause(mill, 20.0)
    assert {lease.id: lease.deadline for lease in mill.state.leases.values()} == deadlines


def test_a_tick_that_is_only_a_little_late_forgives_nothing(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    pause(mill, mill.state.settings.dead_s / 2)
    mill.now += mill.state.settings.dead_s / 2 + 0.1
    mill.feed(Tick())
    assert not any(client.connected for client in mill.state.clients.values())


def test_a_grant_is_not_fenced_because_its_broker_stood_still(a_mill: MakeMill) -> None:
    mill = a_mill()
    mill.hello("host", slots=("cpu:1",))
    mill.hello("trainer", host="host", slots=("cpu:1",))
    mill.send("trainer", wire.GrantAsked())
    held = mill.last("trainer", wire.Grant).grant
    pause(mill, 600.0)
    assert mill.all("trainer", wire.Fence) == []
    mill.wait(mill.state.settings.grace_s + 1, "trainer", "host")
    assert mill.last("trainer", wire.Fence).grant == held


def test_silence_is_measured_in_heartbeats_and_work_goes_back_one_tick_after_the_last_moment(a_mill: MakeMill) -> None:
    """A killed consumer without a host to report it: every lease it held is delivered again, with its count."""
    mill = a_mill(*ALL, "reward-2", schedule__max_lag=0)
    episode = mill.play(mill.held("env-1", "tickets")[0])
    holder = mill.state.leases[episode.lease].client
    other = "reward-2" if holder == "reward-1" else "reward-1"
    last = mill.now
    others = [name for name in mill.state.clients if name != holder]
    while not mill.held(other, "episodes"):
        mill.wait(1, *others)
    assert mill.now - last <= mill.state.settings.dead_s + 1.0
    assert [(d.header.ticket, d.delivery) for d in mill.held(other, "episodes")] == [(episode.header.ticket, 2)]
    assert [each.client for each in mill.state.tickets[episode.header.ticket or 0].history] == [holder]
