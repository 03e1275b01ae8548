"""Where processes go: a slot is for one, hosts run only what they may, and what can be placed is."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from broker.core.assignment import Offer, Place, assign, spare
from schemas.edges import SLOT_ROLES, STAGES, Role

ALL = frozenset(STAGES)


def wanted(**counts: int) -> list[Place]:
    """Processes without a place: `rollout=2`."""
    return [Place(f"{role}-{index}", role, "") for role, count in counts.items() for index in range(count)]


def where(places: list[Place]) -> dict[str, tuple[str, ...]]:
    return {place.name: (place.host, *place.slots) for place in places}


def an_offer(name: str, slots: int, roles: frozenset[str] = ALL, kind: str = "cpu") -> Offer:
    return Offer(name, tuple(f"{kind}:{number}" for number in range(slots)), roles)


AWAY = ALL - {Role.ACTOR_TRAIN, Role.WEIGHT_SYNC}
FLEET = {"env": 2, "rollout": 2, "reward": 1, "reference": 1, "actor-train": 1, "weight-sync": 1}


def test_two_hosts_share_the_work_and_their_equal_slots_are_two() -> None:
    places = where(assign(wanted(**FLEET), [], [an_offer("head", 2), an_offer("far", 2, AWAY)]))
    assert places["actor-train-0"] == ("head", "cpu:1")
    assert {places["rollout-0"], places["rollout-1"]} == {("head", "cpu:0"), ("far", "cpu:0")}
    assert places["reference-0"] == ("far", "cpu:1")
    assert {places["env-0"], places["env-1"]} == {("head",), ("far",)}
    assert places["weight-sync-0"] == ("head",)


def test_on_one_host_reference_shares_the_trainers_slot() -> None:
    places = where(assign(wanted(**FLEET), [], [an_offer("head", 4)]))
    assert places["actor-train-0"] == places["reference-0"] == ("head", "cpu:3")
    assert (places["rollout-0"], places["rollout-1"]) == (("head", "cpu:0"), ("head", "cpu:1"))


def test_one_slot_carries_the_first_replica_too_and_no_second() -> None:
    places = where(assign(wanted(**FLEET), [], [an_offer("head", 1)]))
    assert places["rollout-0"] == places["actor-train-0"] == ("head", "cpu:0")
    assert "rollout-1" not in places


def test_a_host_that_joins_late_gets_what_waited() -> None:
    head = an_offer("head", 2)
    first = assign(wanted(rollout=3), [], [head])
    assert [place.name for place in first] == ["rollout-0", "rollout-1"]
    (late,) = assign(wanted(rollout=3)[2:], first, [head, an_offer("far", 1)])
    assert (late.host, late.slots) == ("far", ("cpu:0",))


def test_a_role_that_no_host_may_run_waits() -> None:
    assert assign(wanted(**{"actor-train": 1}), [], [an_offer("far", 2, AWAY)]) == []


offers = st.lists(
    st.tuples(st.integers(0, 4), st.frozensets(st.sampled_from(STAGES))).map(lambda pair: (pair[0], frozenset(pair[1]))), max_size=4
).map(lambda drawn: [an_offer(f"h{index}", slots, roles) for index, (slots, roles) in enumerate(drawn)])
fleets = st.fixed_dictionaries({role.value: st.integers(0, 1 if role in (Role.ACTOR_TRAIN, Role.WEIGHT_SYNC) else 5) for role in STAGES})


@given(fleet=fleets, hosts=offers, earlier=st.integers(0, 4))
def test_whatever_the_fleet_and_the_hosts(fleet: dict[str, int], hosts: list[Offer], earlier: int) -> None:
    """In two goes: some hosts are there first, the others join."""
    first = assign(wanted(**fleet), [], hosts[:earlier])
    names = {place.name for place in first}
    second = assign([process for process in wanted(**fleet) if process.name not in names], first, hosts)
    placed = [*first, *second]
    by_name = {offer.name: offer for offer in hosts}
    assert len({place.name for place in placed}) == len(placed)
    for place in placed:
        assert place.role in by_name[place.host].roles
        assert set(place.slots) <= set(by_name[place.host].slots)
        assert len(place.slots) <= (place.role in SLOT_ROLES)
    _slots_are_for_one_replica(placed)
    _nobody_waits_who_could_be_placed(fleet, hosts, placed)


def _slots_are_for_one_replica(placed: list[Place]) -> None:
    users = Counter((place.host, slot) for place in placed if place.role == Role.ROLLOUT for slot in place.slots)
    assert all(count == 1 for count in users.values())


def _nobody_waits_who_could_be_placed(fleet: dict[str, int], hosts: list[Offer], placed: list[Place]) -> None:
    found = Counter(place.role for place in placed)
    for role, count in fleet.items():
        able = [offer for offer in hosts if role in offer.roles]
        if role == Role.ROLLOUT and any(offer.slots for offer in able):
            assert found[role] == count or (found[role] >= min(1, count) and spare(placed, hosts) == 0)
        else:
            assert found[role] == (count if able else 0)


@given(fleet=fleets, hosts=offers)
def test_the_same_question_has_the_same_answer(fleet: dict[str, int], hosts: list[Offer]) -> None:
    assert assign(wanted(**fleet), [], hosts) == assign(wanted(**fleet), [], hosts)
