"""The journal.

What was made durable is read back, whatever happened in between; what was not is cut; damage is named, and ends
nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.journal import Contents, Entry, Journal, Position
from broker.journal.format import BLOCK
from broker.journal.reading import Damage, Scan
from schemas.errors import JournalDamagedError, JournalError
from tests.broker.journal.writing import SOME, Written, opened, read, segments, write

ENTRIES = st.lists(st.tuples(st.binary(max_size=50), st.floats(0, 1e9), st.lists(st.binary(max_size=30), max_size=3)), max_size=12)


@given(entries=ENTRIES, batches=st.lists(st.integers(1, 4), max_size=12), segment_bytes=st.integers(1, 20_000))
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
        assert journal.durable == journal.next_number - 1
        journal.close()
    assert read(folder) == entries


def test_a_commit_is_padded_to_whole_blocks_and_none_is_written_twice(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    kept = b""
    for entry in SOME:
        journal.append(*entry)
        journal.commit()
        data = (tmp_path / "00000000.log").read_bytes()
        assert data.startswith(kept)
        kept = data.rstrip(b"\0")
        kept += bytes(-len(kept) % BLOCK)
    journal.close()
    assert (tmp_path / "00000000.log").read_bytes() == kept


def test_the_room_allotted_ahead_is_given_back_at_the_end(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path, 256 << 20)
    journal.append(b"event", 0.0)
    journal.commit()
    assert (tmp_path / "00000000.log").stat().st_size > 2 * BLOCK
    journal.close()
    assert (tmp_path / "00000000.log").stat().st_size == 2 * BLOCK


def test_a_reader_leaves_a_journal_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, SOME)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert read(tmp_path) == SOME
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_entry_is_found_by_its_position(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path, 10_000)
    places: list[Position] = []
    for entry in SOME:
        journal.append(*entry)
        places.append(journal.last_position)
        if len(places) % 3 == 0:
            journal.commit()
    journal.commit()
    for place, (event, now, frames) in zip(places, SOME, strict=True):
        found = journal.entry_at(place)
        assert (found.event, found.now, list(found.frames), found.position) == (event, now, frames, place)
    assert [entry.position for entry in journal.read()] == places
    with pytest.raises(JournalError, match="no whole entry"):
        journal.entry_at(Position(0, 17))
    with pytest.raises(JournalError, match="the segment is gone"):
        journal.entry_at(Position(99, BLOCK))
    journal.close()


def test_a_new_segment_begins_where_one_is_full_and_its_head_names_its_first_entry_and_writer(tmp_path: Path) -> None:
    from broker.journal.reading import segment_head

    write(tmp_path, SOME[:6], segment_bytes=8_000)
    write(tmp_path, SOME[6:], segment_bytes=8_000)
    heads = [segment_head(path) for path in segments(tmp_path)]
    assert len(heads) > 3
    entries = [item for item in Scan(tmp_path) if isinstance(item, Entry)]
    for index, head in enumerate(heads):
        assert head is not None
        assert head.index == index
        assert head.first == min(entry.number for entry in entries if entry.position.segment == index)
        assert head.epoch == (1 if head.first < 6 else 2)


def test_a_segment_is_filled_before_the_next_begins(tmp_path: Path) -> None:
    write(tmp_path, SOME * 8, segment_bytes=6 * BLOCK)
    sizes = [path.stat().st_size // BLOCK for path in segments(tmp_path)]
    assert len(sizes) > 5
    assert set(sizes[:-1]) == {7}


def test_an_entry_larger_than_a_segment_is_taken_all_the_same(tmp_path: Path) -> None:
    entries: Written = [(b"small", 0.0, []), (b"large", 1.0, [b"x" * 3_000_000]), (b"small", 2.0, [])]
    write(tmp_path, entries, segment_bytes=100)
    assert read(tmp_path) == entries


def test_reading_comes_before_appending(tmp_path: Path) -> None:
    write(tmp_path, SOME)
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match="read before anything is appended"):
        journal.append(b"event", 0.0)
    journal.close()


def test_two_brokers_never_write_to_one_directory(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    with pytest.raises(JournalError, match="another broker is at work"):
        Journal(tmp_path)
    journal.close()
    assert read(tmp_path) == []


# --- the end of the last segment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 5, 100, BLOCK - 200, BLOCK])
def test_a_commit_torn_at_the_tail_is_cut_and_its_bytes_are_told(tmp_path: Path, lost: int, capsys: pytest.CaptureFixture[str]) -> None:
    big: Written = [*SOME, (b"last", 9.0, [b"y" * 3000, b"z" * 3000])]
    write(tmp_path, big)
    segment = tmp_path / "00000000.log"
    whole = segment.read_bytes().rstrip(b"\0")
    segment.write_bytes(whole[:-lost])
    journal, found = opened(tmp_path)
    assert found == SOME
    assert journal.cut_bytes == len(whole[:-lost].rstrip(b"\0")) - len(segment.read_bytes())
    assert str(journal.cut_bytes) in capsys.readouterr().out
    assert journal.append(b"new", 9.0) == len(SOME)
    journal.close()
    assert read(tmp_path) == [*SOME, (b"new", 9.0, [])]


def test_zeroes_at_the_tail_are_a_clean_end(tmp_path: Path) -> None:
    write(tmp_path, SOME)
    with (tmp_path / "00000000.log").open("ab") as segment:
        segment.write(bytes(3 * BLOCK + 17))
    journal, found = opened(tmp_path)
    assert found == SOME
    assert journal.cut_bytes == 0
    journal.close()


def test_a_tail_of_anothers_bytes_is_cut(tmp_path: Path) -> None:
    """What a disk may hold behind the last write: a block of an older file, with entries of other numbers."""
    write(tmp_path / "old", SOME)
    for number, tail in enumerate(((tmp_path / "old" / "00000000.log").read_bytes()[BLOCK : 3 * BLOCK], b"TIDE" * 20, b"TIDB" * 20)):
        folder = tmp_path / str(number)
        write(folder, SOME[:3])
        with (folder / "00000000.log").open("ab") as segment:
            segment.write(tail)
        assert read(folder) == SOME[:3]


# --- sealed segments -----------------------------------------------------------------------------------------------------------


def sealed(folder: Path) -> Path:
    """A journal of several commits of several entries, and an empty commit's segment behind them.

    Returns the sealed segment.
    """
    journal, _ = opened(folder)
    for first in range(0, len(SOME), 3):
        for entry in SOME[first : first + 3]:
            journal.append(*entry)
        journal.commit()
    journal.close()
    write(folder, [(b"later", 99.0, [])])
    return folder / "00000000.log"


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_its_own_entry_and_no_other(place: float, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("journal")
    segment = sealed(folder)
    clean = {item.number: item for item in Scan(folder) if isinstance(item, Entry)}
    data = bytearray(segment.read_bytes())
    at = int(place * len(data))
    data[at] ^= 1 << bit
    segment.write_bytes(data)
    items = list(Scan(folder))
    damages = [item for item in items if isinstance(item, Damage)]
    found = {item.number: item for item in items if isinstance(item, Entry)}
    for number, entry in found.items():
        assert entry == clean[number] or not entry.frames_whole
        assert (entry.event, entry.now) == (clean[number].event, clean[number].now)
    lost = sorted(set(clean) - set(found))
    hurt = [number for number, entry in found.items() if not entry.frames_whole]
    owners = [n for n, e in clean.items() if e.position.segment == 0 and e.position.offset <= at < e.position.offset + size_of(e)]
    assert lost + hurt == owners
    assert [n for damage in damages for n in range(damage.first, damage.last + 1)] == lost
    assert len(damages) <= 1
    assert bool(damages) or not owners
    assert segment.read_bytes() == data


def size_of(entry: Entry) -> int:
    from broker.journal.format import entry_bytes

    return entry_bytes(entry.event, entry.frames)


def test_lost_entries_stop_the_reading_by_name_unless_loss_is_accepted(tmp_path: Path) -> None:
    segment = sealed(tmp_path)
    data = bytearray(segment.read_bytes())
    victim = next(item for item in Scan(tmp_path) if isinstance(item, Entry) and item.number == 4)
    data[victim.position.offset + 20] ^= 1
    segment.write_bytes(data)
    journal = Journal(tmp_path)
    with pytest.raises(JournalDamagedError, match=r"00000000\.log, byte \d+: the entry is damaged; entry 4 is lost"):
        list(journal.read())
    assert [entry.number for entry in journal.read(accept_loss=True)] == [0, 1, 2, 3, 5, 6, 7, 8]
    journal.close()
    import json

    (line,) = json.loads((tmp_path / "quarantine.json").read_text())
    assert (line["segment"], line["offset"], line["lost"]) == (0, victim.position.offset, [4])
    copy = (tmp_path / "quarantine" / f"00000000-{victim.position.offset}.bin").read_bytes()
    assert copy == bytes(data[victim.position.offset : victim.position.offset + line["bytes"]])
    assert segment.read_bytes() == data


@pytest.mark.parametrize("how", ["zeroes", "cut", "gone", "swapped"])
def test_a_sealed_segment_that_lost_its_middle_or_end_is_corruption_not_a_clean_end(tmp_path: Path, how: str) -> None:
    write(tmp_path, SOME, segment_bytes=2 * BLOCK)
    first, second = segments(tmp_path)[1:3]
    data = first.read_bytes()
    if how == "zeroes":
        first.write_bytes(data[:BLOCK] + bytes(len(data) - BLOCK))
    elif how == "cut":
        first.write_bytes(data[:-BLOCK])
    elif how == "gone":
        first.unlink()
    else:
        write(tmp_path / "other", [(b"x" + event, now, frames) for event, now, frames in SOME], segment_bytes=2 * BLOCK)
        first.write_bytes((tmp_path / "other" / first.name).read_bytes())
    before = {path.name: path.read_bytes() for path in segments(tmp_path)}
    damages = [item for item in Scan(tmp_path) if isinstance(item, Damage)]
    assert damages, "it was passed over"
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match="put here from elsewhere" if how == "swapped" else "is lost|are lost"):
        list(journal.read())
    journal.close()
    assert {path.name: path.read_bytes() for path in segments(tmp_path)} == before
    assert second.exists()


def test_a_segment_that_was_begun_from_a_checkpoint_is_no_file_from_elsewhere(tmp_path: Path) -> None:
    """Its broker read nothing before it: nobody then knew the checksum of the last commit."""
    journal, _ = opened(tmp_path)
    for entry in SOME:
        journal.append(*entry)
    journal.commit()
    journal.checkpoint(b"", Contents(placed={}, inline={}), 8.0)
    journal.close()
    again = Journal(tmp_path)
    (checkpoint,) = again.checkpoints()
    assert list(again.read(checkpoint)) == []
    again.append(b"behind it", 9.0)
    again.close()
    assert len(segments(tmp_path)) == 2
    assert [item for item in Scan(tmp_path) if isinstance(item, Damage)] == []
    assert len(read(tmp_path)) == len(SOME) + 1
