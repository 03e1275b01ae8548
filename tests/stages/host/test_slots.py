"""Slots and the cores behind them: pure."""

import pytest

from schemas.errors import ConfigError
from stages.host.machine import gpus, visible_for
from stages.host.slots import check_they_are_here, cores_of, gpus_of, offered_slots, slots_named


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


def test_slots_are_named_one_by_one_or_by_range() -> None:
    assert slots_named("cpu:0-2", [0, 1, 2, 3]) == ("cpu:0", "cpu:1", "cpu:2")
    assert slots_named("gpu:0-1, cpu:5", [0]) == ("gpu:0", "gpu:1", "cpu:5")
    assert slots_named("cpu:1,cpu:0-1", [0, 1]) == ("cpu:1", "cpu:0")


def test_auto_offers_each_gpu_and_where_there_is_none_each_core() -> None:
    assert slots_named("auto", [2, 3], [0, 1]) == ("gpu:0", "gpu:1")
    assert slots_named("auto", [2, 3]) == ("cpu:2", "cpu:3")


@pytest.mark.parametrize("text", ["cpu", "cpu:", "cpu:2-1", "tpu:0", "cpu:0-99999", "cpu:0,,cpu:1", "cpu:-1", ""])
def test_what_is_no_slot_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(ConfigError, match="--slots"):
        slots_named(text, [0, 1])


@pytest.mark.parametrize(
    ("text", "missing", "has"),
    [
        ("gpu:0", "gpu:0", "the cores 0-1,5 and no GPU"),
        ("cpu:0-99", "cpu:2", "the cores 0-1,5 and no GPU"),
        ("cpu:0,gpu:0-2", "gpu:2", "the cores 0-1,5 and the GPUs 0-1"),
    ],
)
def test_a_slot_that_the_machine_lacks_is_refused_with_what_it_has(text: str, missing: str, has: str) -> None:
    with pytest.raises(ConfigError, match=f"this machine has no {missing}; what may be used here: {has}"):
        check_they_are_here(text, [0, 1, 5], [0, 1] if "GPUs" in has else [])


@pytest.mark.parametrize("text", ["auto", "cpu:0-1", "cpu:5,gpu:0-1"])
def test_slots_that_are_here_pass(text: str) -> None:
    check_they_are_here(text, [0, 1, 5], [0, 1])


def test_a_process_on_gpu_slots_sees_those_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus_of(("gpu:3", "cpu:1", "gpu:0")) == (0, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-abc")
    assert gpus() == [0, 1]
    assert visible_for((1,)) == {"CUDA_VISIBLE_DEVICES": "GPU-abc"}
    assert visible_for(()) == {}
