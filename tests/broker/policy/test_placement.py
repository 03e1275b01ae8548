"""Placement: where a session's KV is, else where fewest turns are in flight."""

from broker.policy.placement import Placement, ReplicaView, place


def a_replica(name: str, in_flight: int = 0, window: int = 4, installed: int = 0) -> ReplicaView:
    """A replica with room."""
    return ReplicaView(name=name, in_flight=in_flight, window=window, installed=installed)


def test_a_session_stays_where_its_kv_is_while_there_is_room() -> None:
    assert place("b", None, [a_replica("a"), a_replica("b", in_flight=3)]) == Placement("b", sticky=True)
    assert place("b", None, [a_replica("a", in_flight=3), a_replica("b", in_flight=4)]) == Placement("a", sticky=False)


def test_a_first_turn_goes_where_fewest_are_in_flight_by_name_where_equal() -> None:
    assert place(None, None, [a_replica("b", 1), a_replica("a", 2)]) == Placement("b", sticky=False)
    assert place(None, None, [a_replica("b", 1), a_replica("a", 1)]) == Placement("a", sticky=False)


def test_a_session_whose_replica_is_gone_moves() -> None:
    assert place("gone", None, [a_replica("a")]) == Placement("a", sticky=False)


def test_a_pinned_turn_goes_only_to_its_version() -> None:
    replicas = [a_replica("a", installed=1), a_replica("b", in_flight=3, installed=2)]
    assert place("a", 2, replicas) == Placement("b", sticky=False)
    assert place("a", 3, replicas) is None


def test_without_room_a_turn_waits() -> None:
    assert place(None, None, [a_replica("a", in_flight=4)]) is None
    assert place("a", None, []) is None
