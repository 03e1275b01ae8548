"""Slots and the cores behind them: pure."""

from stages.host.slots import cores_of, offered_slots


def test_auto_offers_one_slot_for_each_core_that_may_be_used() -> None:
    assert offered_slots("auto", [2, 3, 7]) == ("cpu:2", "cpu:3", "cpu:7")


def test_a_number_offers_that_many() -> None:
    assert offered_slots(1, [2, 3]) == ("cpu:2",)


def test_more_slots_than_cores_share_cores_under_names_of_their_own() -> None:
    slots = offered_slots(4, [2, 3])
    assert slots == ("cpu:2", "cpu:3", "cpu:4", "cpu:5")
    assert [cores_of([slot], [2, 3]) for slot in slots] == [(2,), (3,), (2,), (3,)]


def test_a_process_without_a_core_slot_is_not_pinned() -> None:
    assert cores_of((), [0, 1]) == ()
