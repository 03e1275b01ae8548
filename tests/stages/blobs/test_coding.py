"""Changed bytes, there and back; and what is not a delta."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from schemas.errors import BlobError
from stages.blobs.core.coding import ALL, BITMAP, GAPS, Plane, apply, difference

ITEMS = st.sampled_from([1, 2, 4, 8])


def changed(old: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A copy in which about `share` of the bytes are others."""
    chance = np.random.default_rng(seed)
    new = old.copy()
    where = chance.random(old.size) < share
    new[where] = chance.integers(0, 256, int(where.sum()), np.uint8)
    return new


def size(planes: list[Plane]) -> int:
    return sum(len(plane.data) for plane in planes)


@settings(max_examples=200, deadline=None)
@given(ITEMS, hnp.arrays(np.uint8, st.integers(0, 400)), st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.3, 0.9, 1.0]), st.integers(0, 2**32 - 1))
def test_the_new_bytes_come_out_of_the_old_ones(item: int, old: np.ndarray, share: float, seed: int) -> None:
    old = np.tile(old, 8)
    new = changed(old, share, seed)
    planes = difference(old, new, item)
    found = old.copy()
    apply(found, planes, item)
    assert np.array_equal(found, new)
    assert bool(planes) == (not np.array_equal(old, new))


@pytest.mark.parametrize(("share", "form"), [(0.001, GAPS), (0.05, GAPS), (0.5, BITMAP), (1.0, ALL)])
def test_how_it_is_written_follows_how_much_changed(share: float, form: int) -> None:
    old = np.zeros(100_000, np.uint8)
    new = np.where(np.random.default_rng(1).random(old.size) < share, 7, old).astype(np.uint8)
    (plane,) = difference(old, new, 1)
    assert plane.form == form


def test_gaps_longer_than_a_byte_are_kept() -> None:
    old = np.zeros(10_000, np.uint8)
    for positions in ([0], [254], [255], [256], [509, 510, 511], [0, 255, 510, 9_999], [9_999]):
        new = old.copy()
        new[positions] = 3
        found = old.copy()
        apply(found, difference(old, new, 1), 1)
        assert np.flatnonzero(found).tolist() == positions


def test_small_steps_of_many_numbers_cost_a_fraction() -> None:
    chance = np.random.default_rng(2)
    old = chance.normal(size=200_000).astype(np.float32)
    new = (old * (1 + 1e-6 * chance.normal(size=old.size))).astype(np.float32)
    assert size(difference(old.view(np.uint8), new.view(np.uint8), 4)) < 0.5 * old.nbytes


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_delta_is_refused_or_gives_something_of_the_same_size(data: st.DataObject) -> None:
    item = data.draw(ITEMS)
    old = np.zeros(64 * item, np.uint8)
    plane = Plane(
        data.draw(st.integers(-2, 9)), data.draw(st.integers(-1, 4)), data.draw(st.integers(-3, 100)), data.draw(st.binary(max_size=200)),
        data.draw(st.booleans()),
    )  # fmt: skip
    with contextlib.suppress(BlobError):
        apply(old, [plane], item)
    assert old.size == 64 * item


def test_a_delta_that_inflates_without_end_is_refused() -> None:
    import zlib

    bomb = zlib.compress(bytes(100_000_000))
    with pytest.raises(BlobError, match="inflates to more"):
        apply(np.zeros(1000, np.uint8), [Plane(0, ALL, 1000, bomb, True)], 1)


def test_blocks_of_other_sizes_have_no_difference() -> None:
    with pytest.raises(BlobError, match="no numbers"):
        difference(np.zeros(8, np.uint8), np.zeros(6, np.uint8), 2)
    with pytest.raises(BlobError, match="no numbers"):
        difference(np.zeros(7, np.uint8), np.zeros(7, np.uint8), 2)
