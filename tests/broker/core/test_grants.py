"""Slot grants: never two holders of a slot, first asked first served, fenced when late."""

from collections.abc import Callable

from broker.core.settings import GRANT_SECONDS
from schemas import messages as wire
from tests.broker.core.mill import Mill

MakeMill = Callable[..., Mill]


def granted(mill: Mill, name: str) -> list[int]:
    """Numbers of the grants that a client was given."""
    return [message.grant for message in mill.all(name, wire.Grant)]


def on_slots(mill: Mill, **slots: tuple[str, ...]) -> None:
    """Clients come up with these slots: `trainer=("cpu:1",)`."""
    for name, own in slots.items():
        mill.hello(name.replace("_", "-"), slots=own, host="host")


def test_who_shares_a_slot_takes_turns(a_mill: MakeMill) -> None:
    mill = a_mill()
    on_slots(mill, trainer=("cpu:1",), reference_1=("cpu:1",))
    mill.send("reference-1", wire.GrantAsked())
    mill.send("trainer", wire.GrantAsked())
    assert len(granted(mill, "reference-1")) == 1
    assert granted(mill, "trainer") == []
    mill.send("reference-1", wire.GrantReleased(grant=granted(mill, "reference-1")[0]))
    assert len(granted(mill, "trainer")) == 1


def test_several_slots_are_granted_as_one_gang_and_nobody_overtakes_it(a_mill: MakeMill) -> None:
    mill = a_mill()
    on_slots(mill, trainer=("cpu:0", "cpu:1"), reference_1=("cpu:0",), reference_2=("cpu:1",))
    mill.send("reference-1", wire.GrantAsked())
    mill.send("trainer", wire.GrantAsked())
    mill.send("reference-2", wire.GrantAsked())
    assert granted(mill, "trainer") == granted(mill, "reference-2") == []
    mill.send("reference-1", wire.GrantReleased(grant=granted(mill, "reference-1")[0]))
    assert mill.last("trainer", wire.Grant).slots == ("cpu:0", "cpu:1")
    assert granted(mill, "reference-2") == []
    mill.send("trainer", wire.GrantReleased(grant=granted(mill, "trainer")[0]))
    assert len(granted(mill, "reference-2")) == 1


def test_without_a_host_a_grant_is_given_at_once(a_mill: MakeMill) -> None:
    mill = a_mill()
    mill.hello("trainer")
    mill.hello("reference-1")
    mill.send("trainer", wire.GrantAsked())
    mill.send("reference-1", wire.GrantAsked())
    assert mill.last("trainer", wire.Grant).slots == mill.last("reference-1", wire.Grant).slots == ()


def test_asking_again_gives_the_same_grant(a_mill: MakeMill) -> None:
    mill = a_mill()
    on_slots(mill, trainer=("cpu:1",))
    mill.send("trainer", wire.GrantAsked())
    mill.send("trainer", wire.GrantAsked())
    assert len(set(granted(mill, "trainer"))) == 1
    assert len(mill.state.grants) == 1


def test_a_grant_past_its_deadline_is_fenced_and_its_late_release_changes_nothing(a_mill: MakeMill) -> None:
    mill = a_mill()
    on_slots(mill, trainer=("cpu:1",), reference_1=("cpu:1",))
    mill.send("trainer", wire.GrantAsked())
    mill.send("reference-1", wire.GrantAsked())
    mill.wait(GRANT_SECONDS + 1, "trainer", "reference-1")
    late = granted(mill, "trainer")[0]
    assert mill.last("trainer", wire.Fence).grant == late
    assert len(granted(mill, "reference-1")) == 1
    mill.send("trainer", wire.GrantReleased(grant=late))
    assert len(mill.state.grants) == 1


def test_a_grant_ends_with_its_holder(a_mill: MakeMill) -> None:
    mill = a_mill()
    on_slots(mill, trainer=("cpu:1",), reference_1=("cpu:1",))
    mill.send("trainer", wire.GrantAsked())
    mill.send("reference-1", wire.GrantAsked())
    mill.say("trainer", wire.Bye())
    assert len(granted(mill, "reference-1")) == 1


def test_nobody_releases_anothers_grant(a_mill: MakeMill) -> None:
    mill = a_mill()
    on_slots(mill, trainer=("cpu:1",), reference_1=("cpu:1",))
    mill.send("trainer", wire.GrantAsked())
    mill.send("reference-1", wire.GrantAsked())
    mill.send("reference-1", wire.GrantReleased(grant=granted(mill, "trainer")[0]))
    assert granted(mill, "reference-1") == []


def test_a_grant_that_was_lost_on_its_way_is_given_again_to_the_process_that_comes_back(a_mill: MakeMill) -> None:
    mill = a_mill()
    on_slots(mill, trainer=("cpu:1",), reference_1=("cpu:1",))
    mill.send("trainer", wire.GrantAsked())
    number = granted(mill, "trainer")[0]
    mill.restart()
    on_slots(mill, trainer=("cpu:1",))
    assert granted(mill, "trainer") == [number, number]
    mill.hello("trainer", grants=(number,))
    assert granted(mill, "trainer") == [number, number]
    mill.hello("trainer", incarnation="b")
    assert mill.state.grants == {}
