"""The journal: what was committed is read back, whatever happened in between; what was not is cut, and damage is never passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.journal import HEAD, Journal
from schemas.errors import JournalError

Written = list[tuple[bytes, float, list[bytes]]]
ENTRIES = st.lists(st.tuples(st.binary(max_size=50), st.floats(0, 1e9), st.lists(st.binary(max_size=30), max_size=3)), max_size=12)


def opened(folder: Path, segment_bytes: int = 1 << 20) -> tuple[Journal, Written]:
    """The journal of `folder`, ready to append, and what it held."""
    journal = Journal(folder, segment_bytes)
    return journal, [(entry.event, entry.now, [bytes(frame) for frame in entry.frames]) for entry in journal.read()]


def write(folder: Path, entries: Written, segment_bytes: int = 1 << 20) -> None:
    """Each entry committed by itself."""
    journal, _ = opened(folder, segment_bytes)
    for event, now, frames in entries:
        journal.append(event, now, frames)
        journal.commit()
    journal.close()


def read(folder: Path) -> Written:
    journal, found = opened(folder)
    journal.close()
    return found


SOME: Written = [(f"event {n}".encode(), float(n), [b"x" * n, b""]) for n in range(8)]


@given(entries=ENTRIES, batches=st.lists(st.integers(1, 4), max_size=12), segment_bytes=st.integers(1, 400))
def test_entries_come_back_in_order_over_any_commits_segments_and_reopenings(
    entries: Written, batches: list[int], segment_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    left = list(entries)
    for size in [*batches, len(left) + 1]:
        journal, found = opened(folder, segment_bytes)
        assert found == entries[: len(entries) - len(left)]
        taken, left = left[:size], left[size:]
        numbers = [journal.append(*entry) for entry in taken]
        assert numbers == list(range(len(found), len(found) + len(taken)))
        journal.commit()
        journal.close()
    assert read(folder) == entries


def test_what_was_appended_and_not_committed_is_not_on_disk(tmp_path: Path) -> None:
    write(tmp_path, SOME[:2])
    journal, _ = opened(tmp_path)
    journal.append(*SOME[2])
    assert journal.has_uncommitted
    copy = (tmp_path / "00000000.log").read_bytes()
    assert journal.commit() > 0
    assert not journal.has_uncommitted
    assert (tmp_path / "00000000.log").read_bytes()[: len(copy)] == copy
    assert len((tmp_path / "00000000.log").read_bytes()) > len(copy)
    assert journal.commit() == 0
    journal.close()


@pytest.mark.parametrize("lost", [1, 5, HEAD.size, HEAD.size + 3])
def test_a_torn_tail_is_cut_and_writing_goes_on_behind_the_last_whole_entry(tmp_path: Path, lost: int) -> None:
    write(tmp_path, SOME)
    segment = tmp_path / "00000000.log"
    segment.write_bytes(segment.read_bytes()[:-lost])
    journal, found = opened(tmp_path)
    assert found == SOME[:-1]
    assert journal.cut_bytes > 0
    assert journal.append(b"new", 9.0) == len(SOME) - 1
    journal.close()
    assert read(tmp_path) == [*SOME[:-1], (b"new", 9.0, [])]


def test_a_tail_of_anothers_bytes_is_cut(tmp_path: Path) -> None:
    """What a disk may hold behind the last write: zeros, or a block of an older file with entries of other numbers."""
    write(tmp_path / "old", SOME)
    for tail in (b"\0" * 100, (tmp_path / "old" / "00000000.log").read_bytes()[:60], b"TIDE"):
        folder = tmp_path / str(len(tail))
        write(folder, SOME[:3])
        with (folder / "00000000.log").open("ab") as segment:
            segment.write(tail)
        assert read(folder) == SOME[:3]


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_never_changes_an_entry_it_ends_the_reading(place: float, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("journal")
    write(folder, SOME)
    segment = folder / "00000000.log"
    data = bytearray(segment.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    segment.write_bytes(data)
    found = read(folder)
    assert found == SOME[: len(found)]


def test_a_damaged_middle_segment_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, SOME, segment_bytes=60)
    first = tmp_path / "00000000.log"
    assert len(list(tmp_path.glob("*.log"))) > 2
    first.write_bytes(first.read_bytes()[:-1])
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match=r"00000000\.log.*damaged"):
        list(journal.read())
    journal.close()


def test_segments_that_are_gone_from_the_middle_are_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    write(tmp_path, SOME, segment_bytes=60)
    for segment in sorted(tmp_path.glob("*.log"))[1:-1]:
        segment.unlink()
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match="entry [1-9].* is damaged or missing"):
        list(journal.read())
    journal.close()


def test_a_new_segment_begins_where_the_size_would_be_passed(tmp_path: Path) -> None:
    write(tmp_path, SOME, segment_bytes=120)
    sizes = [file.stat().st_size for file in sorted(tmp_path.glob("*.log"))]
    assert len(sizes) > 1
    assert max(sizes) <= 120
    assert read(tmp_path) == SOME


def test_an_entry_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    entries: Written = [(b"small", 0.0, []), (b"large", 1.0, [b"x" * 1000]), (b"small", 2.0, [])]
    write(tmp_path, entries, segment_bytes=100)
    assert len(list(tmp_path.glob("*.log"))) == 3
    assert read(tmp_path) == entries


def test_a_second_broker_on_one_directory_is_refused_at_once(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    with pytest.raises(JournalError, match="another broker is at work"):
        Journal(tmp_path)
    journal.close()
    assert read(tmp_path) == []


def test_segments_are_for_their_owner_alone(tmp_path: Path) -> None:
    write(tmp_path, SOME)
    assert (tmp_path / "00000000.log").stat().st_mode & 0o777 == 0o600
