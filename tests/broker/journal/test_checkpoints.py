"""Checkpoints, quota and damage.

A start gives the same state whatever derived file is lost, and says what it could not read.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import pytest

from broker.core.events import decode_event, puts_of
from broker.core.state import State
from broker.journal import Entry, Journal, checkpoint
from broker.journal.checkpoint import Checkpoint, Contents, Place
from broker.journal.format import Position
from broker.journal.reading import Scan
from broker.journal.retention import droppable
from broker.recovery import encode_state
from schemas.errors import JournalDamagedError, JournalError
from tests.broker.journal.faulty_files import FaultyFiles
from tests.broker.journal.lives import Life, checkpoints, segments, some_run, truth


def lived(folder: Path, until: int | None = None, **settings: int) -> None:
    """A life, ended cleanly but without a last checkpoint."""
    life = Life(folder, **settings)
    life.play(until)
    life.close()


def test_a_checkpoint_is_what_a_fold_of_the_journal_gives_byte_for_byte(tmp_path: Path) -> None:
    lived(tmp_path)
    found = list(checkpoint.valid(tmp_path))
    assert len(found) == 2
    for each in found:
        assert each.state == truth(each.number)[0]
        assert encode_state(msgspec.msgpack.decode(each.state, type=State)) == each.state


@pytest.mark.parametrize("lost", [["all"], ["newest"], ["oldest"], ["newest", "damaged"], ["damaged"], ["emptied"]])
def test_lost_or_damaged_checkpoints_change_nothing(tmp_path: Path, lost: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lived(tmp_path)
    oldest, newest = checkpoints(tmp_path)
    if "newest" in lost or "all" in lost:
        newest.unlink()
    if "oldest" in lost or "all" in lost:
        oldest.unlink()
    if "damaged" in lost:
        data = bytearray(checkpoints(tmp_path)[-1].read_bytes())
        data[len(data) // 2] ^= 1
        checkpoints(tmp_path)[-1].write_bytes(data)
    if "emptied" in lost:
        newest.write_bytes(b"")
    life = Life(tmp_path)
    assert life.count == len(some_run())
    life.check()
    life.close()
    assert ("checkpoint_damaged" in capsys.readouterr().out) == ("damaged" in lost or "emptied" in lost)


def test_a_start_reads_only_what_no_checkpoint_covers(tmp_path: Path) -> None:
    lived(tmp_path)
    newest = next(checkpoint.valid(tmp_path))
    journal = Journal(tmp_path)
    assert [entry.number for entry in journal.read(newest)] == list(range(newest.number, len(some_run())))
    journal.close()


def test_a_checkpoint_that_cannot_be_written_is_no_misfortune(tmp_path: Path) -> None:
    def fault(call: str, count: int) -> None:
        if call == "unlink" or (call == "rename" and files.calls.count("fdatasync") > 4):
            raise OSError(28, "No space left on device")

    files = FaultyFiles(fault)
    life = Life(tmp_path, files, segment_bytes=1 << 20)
    life.play()
    life.close()
    assert checkpoints(tmp_path) == []
    life = Life(tmp_path)
    life.check()
    life.close()


def test_no_checkpoint_is_written_ahead_of_its_journal(tmp_path: Path) -> None:
    files = FaultyFiles()
    life = Life(tmp_path, files)
    life.play(8)
    files.sync_may_go.clear()
    for recorded in some_run()[8:12]:
        life.journal.append(recorded.event, recorded.now, recorded.frames)
    life.checkpoint(1.0)
    assert not list(tmp_path.glob("*checkpoint*"))
    files.sync_may_go.set()
    life.close()
    (only,) = checkpoint.valid(tmp_path)
    assert only.number == 12


# --- damage --------------------------------------------------------------------------------------------------------------------


def flip(folder: Path, entry: Entry, at: int) -> None:
    """One bit of an entry, `at` bytes behind its start."""
    path = folder / f"{entry.position.segment:08d}.log"
    data = bytearray(path.read_bytes())
    data[entry.position.offset + at] ^= 4
    path.write_bytes(data)


def entries(folder: Path) -> list[Entry]:
    return [item for item in Scan(folder) if isinstance(item, Entry)]


def test_damage_below_a_checkpoint_is_quarantined_said_and_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lived(tmp_path)
    victim = entries(tmp_path)[10]
    flip(tmp_path, victim, 60)
    before = (tmp_path / f"{victim.position.segment:08d}.log").read_bytes()
    life = Life(tmp_path)
    life.check()
    life.journal.finish_looking()
    life.close()
    assert "entry 10 is lost" in capsys.readouterr().out
    (line,) = json.loads((tmp_path / "quarantine.json").read_text())
    assert line["lost"] == [10]
    assert (tmp_path / f"{victim.position.segment:08d}.log").read_bytes() == before
    assert [entry.number for entry in entries(tmp_path)] == [n for n in range(len(some_run())) if n != 10]


def test_damage_that_no_checkpoint_covers_is_refused_by_name_and_can_be_accepted(tmp_path: Path) -> None:
    lived(tmp_path)
    victim = entries(tmp_path)[70]
    for path in checkpoints(tmp_path):
        path.unlink()
    flip(tmp_path, victim, 60)
    with pytest.raises(JournalDamagedError, match=r"entry 70 is lost; no checkpoint covers that") as told:
        Life(tmp_path)
    assert told.value.acceptable


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_what_came_behind_the_newest_checkpoint_does_not_go_without_a_word(tmp_path: Path, how: str) -> None:
    lived(tmp_path, 93)
    newest = next(checkpoint.valid(tmp_path))
    last = segments(tmp_path)[-1]
    assert newest.position.segment == int(last.stem)
    assert newest.number == 90
    if how == "gone":
        last.unlink()
    else:
        with last.open("r+b") as file:
            file.truncate(newest.position.offset - 4096)
    with pytest.raises(JournalDamagedError, match=rf"{last.name} is gone or cut short, and with it what came behind checkpoint 90") as told:
        Life(tmp_path)
    assert told.value.acceptable
    journal = Journal(tmp_path)
    assert list(journal.read(newest, accept_loss=True)) == []
    assert journal.next_number == 90
    journal.close()


def live_record(folder: Path, count: int) -> tuple[Entry, int]:
    """An entry whose frames are needed after `count` events, and the first of the messages in it."""
    needed = set(truth(count)[1])
    import broker.arena
    from broker.recovery import fold

    arena, state, owners = broker.arena.Arena(), None, {}
    for entry in entries(folder)[:count]:
        state = fold(state, arena, entry)
        if entry.frames:
            owners |= {message: entry for message, place in arena.contents().placed.items() if place.position == entry.position}
    message = min(needed & set(owners))
    return owners[message], message


@pytest.mark.parametrize("covered", [True, False])
def test_a_record_whose_frames_are_damaged_is_named_and_all_others_are_served(tmp_path: Path, covered: bool) -> None:
    count = 89
    lived(tmp_path, count)
    victim, message = live_record(tmp_path, count)
    if not covered:
        for path in checkpoints(tmp_path):
            path.unlink()
    flip(tmp_path, victim, 48 + len(victim.event) + 4 * len(victim.frames) + 1)
    life = Life(tmp_path)
    assert life.count == count
    assert encode_state(life.state) == truth(count)[0]
    assert life.damaged == (message,)
    held = life.arena.contents()
    assert {*held.placed, *held.inline} == set(truth(count)[1])
    assert len(life.arena) == len(truth(count)[1]) - 1
    life.close()
    lines = json.loads((tmp_path / "quarantine.json").read_text()) if (tmp_path / "quarantine.json").exists() else []
    assert covered or [line["offset"] for line in lines] == [victim.position.offset]


# --- quota ---------------------------------------------------------------------------------------------------------------------


def test_over_the_quota_the_oldest_segments_that_nobody_needs_are_dropped_and_a_start_does_not_miss_them(tmp_path: Path) -> None:
    journal, held = Journal(tmp_path, 20_000, 60_000), None
    assert list(journal.read()) == []
    for number in range(100):
        journal.append(b"event", float(number), [bytes(3_000)])
        journal.commit()
        if number == 12:
            held = journal.last_position
        if number % 20 == 19 and held is not None:
            journal.checkpoint(b"state", Contents(placed={7: Place(held.segment, held.offset, 0, 1)}, inline={}), float(number))
            journal.finish_checkpoint()
    assert held is not None
    assert journal.entry_at(held).number == 12
    left = [int(path.stem) for path in segments(tmp_path)]
    assert left[0] == held.segment
    assert left[1] > held.segment + 3
    journal.close()
    journal = Journal(tmp_path, 20_000, 60_000)
    newest = next(journal.checkpoints())
    assert [entry.number for entry in journal.read(newest)] == list(range(newest.number, 100))
    journal.close()
    for path in checkpoints(tmp_path):
        path.unlink()
    journal = Journal(tmp_path, 20_000, 60_000)
    with pytest.raises(JournalError, match="the segments before this one are gone; entries 0 to"):
        list(journal.read())
    journal.close()


def test_a_journal_above_its_quota_with_nothing_to_drop_asks_for_room(tmp_path: Path) -> None:
    life = Life(tmp_path, quota_bytes=20_000, segment_bytes=1 << 20)
    assert not life.journal.is_short
    life.play(60)
    assert life.journal.is_short
    life.close()


def a_checkpoint(segment: int, held: tuple[int, ...] = ()) -> Checkpoint:
    placed = {n: Place(index, 0, 0, 1) for n, index in enumerate(held)}
    return Checkpoint(number=9, now=0.0, position=Position(segment, 0), state=b"", arena=Contents(placed=placed, inline={}))


def test_only_what_lies_behind_every_kept_checkpoint_and_holds_no_live_record_may_go() -> None:
    sizes = dict.fromkeys(range(6), 10)
    assert droppable(sizes, 60, 100, [a_checkpoint(5)]) == []
    assert droppable(sizes, 60, 45, [a_checkpoint(5)]) == [0, 1]
    assert droppable(sizes, 60, 45, [a_checkpoint(5), a_checkpoint(1)]) == [0]
    assert droppable(sizes, 60, 0, [a_checkpoint(4, held=(1,)), a_checkpoint(3, held=(0,))]) == [2]
    assert droppable(sizes, 60, 0, []) == []
    for behind, quota in itertools.product(range(7), range(0, 70, 10)):
        gone = droppable(sizes, 60, quota, [a_checkpoint(behind)])
        assert gone == sorted(gone)
        assert all(segment < behind for segment in gone)
        assert 60 - 10 * len(gone) <= max(quota, 60 - 10 * behind)


def test_every_event_of_a_run_survives_its_own_encoding() -> None:
    for recorded in some_run():
        event = decode_event(recorded.event)
        assert msgspec.msgpack.encode(event) == recorded.event
        assert sum(len(header.frames) for header in puts_of(event)) == len(recorded.frames)
