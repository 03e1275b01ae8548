"""A journal is read as far as is honest, and what is not there is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from broker.core.events import Tick, encode_event
from broker.journal import Position
from broker.journal.format import BLOCK, ENTRY_HEAD
from broker.journal.reading import Damage, Scan
from schemas.errors import JournalError
from tests.tools.records.recorded import entries_of, write_run
from tools.records import views
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.records.story import subject_of
from tools.records.tail import tail_of
from tools.records.telling import Walk, tell
from tools.sim.driver import Entry


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return entries_of()


def said(run: Path) -> tuple[int, list[str]]:
    """Records found, and what the overview says is wrong."""
    with Look(open_run(str(run))) as look:
        rows = look.all_rows(Selection(begin=0.0))
        return len(rows), list(views.warnings(look.index, tail_of(look), manifest={}))


def log_of(run: Path, segment: int = 0) -> Path:
    return run / "journal" / f"{segment:08d}.log"


def place_of(run: Path, number: int) -> Position:
    return next(item.position for item in Scan(run / "journal", expected=0) if not isinstance(item, Damage) and item.number == number)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_a_journal_cut_off_in_mid_record_is_read_up_to_its_last_whole_commit(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    whole, _ = said(write_run(tmp_path / "whole", entries))
    end = place_of(run, max(number for number, entry in enumerate(entries) if entry.frames))
    with log_of(run).open("r+b") as file:
        file.truncate(end.offset + 10)
    found, words = said(run)
    assert 0 < found < whole
    (line,) = words
    assert "no whole commit" in line
    assert "nothing of it was acknowledged" in line


def test_a_flipped_bit_in_an_event_costs_that_entry_and_stops_the_fold(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    whole, _ = said(write_run(tmp_path / "whole", entries))
    number = next(n for n, entry in enumerate(entries) if n > 60 and entry.frames)
    place = place_of(run, number)
    flip(log_of(run), place.offset + ENTRY_HEAD.size + 5)
    found, words = said(run)
    assert whole - 40 < found < whole
    assert any(f"entry {number} is lost" in line for line in words)
    assert any("not followed all the way" in line and f"{number}" in line for line in words)


def test_what_lies_behind_a_lost_entry_is_told_from_the_rows_without_a_walk_to_it(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries, segment_bytes=30_000)
    number = next(n for n, entry in enumerate(entries) if n > 60 and entry.frames)
    place = place_of(run, number)
    flip(log_of(run, place.segment), place.offset + ENTRY_HEAD.size + 5)
    with Look(open_run(str(run))) as look:
        look.catch_up()
        rows = look.all_rows(Selection(queue="episodes"))
        ticket = int(rows["ticket"][-1])
        of = look.all_rows(Selection(session=(ticket, None)))
        read = Walk(look, int(of["number"].min()), want_frames=False)
        first = next(iter(read))[0].number
        story = tell(look, subject_of(f"ticket:{ticket}"))
    assert number + 20 < first <= int(of["number"].min())
    assert {fact.number for fact in story.facts} == set(of["number"].tolist())
    assert f"entries {number} to {number} are gone" in story.note


def test_a_flipped_bit_in_frames_leaves_the_header_and_says_so(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    number = next(n for n, entry in enumerate(entries) if n > 60 and entry.frames)
    place = place_of(run, number)
    size = ENTRY_HEAD.size + len(entries[number].event) + 4 * len(entries[number].frames)
    flip(log_of(run), place.offset + size + 3)
    with Look(open_run(str(run))) as look:
        record = look.record(number, 0)
        assert record.arrays == {}
        assert record.header["queue"]
        assert "damaged" in record.remarks[0]
        row = look.row(number, 0)
        assert "damaged" in views.row_fields(row, look.index.meta)["flags"]
        assert look.index.meta.followed.note == ""


def test_segments_that_the_quota_dropped_are_named_and_the_rest_is_read(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries, segment_bytes=30_000)
    log_of(run, 0).unlink()
    found, words = said(run)
    assert found > 0
    assert any(line.startswith("missing: entries 0 to") and "quota" in line for line in words)


def test_segments_dropped_after_they_were_indexed_keep_their_headers(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries, segment_bytes=30_000)
    before, _ = said(run)
    log_of(run, 0).unlink()
    found, words = said(run)
    assert found == before
    assert any("segments 00000000 were dropped" in line for line in words)


def changed(entry: Entry, change: Any) -> Entry:
    """The entry with its event changed as msgpack."""
    event = msgpack.unpackb(entry.event)
    change(event)
    return Entry(entry.now, msgpack.packb(event), entry.frames)


def of_another_schema(event: dict[str, Any]) -> None:
    """An older broker's: a field of the commit is called otherwise, headers carry one more and another fingerprint."""
    message = event.get("message", {})
    for put in message.get("puts", ()):
        put["colour"], put["fingerprint"] = "blue", 1
    if "acks" in message:
        message["acks"] = {"leases": message["acks"]}


def test_a_journal_of_another_schema_is_listed_and_its_records_opened(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", [changed(entry, of_another_schema) for entry in entries])
    with Look(open_run(str(run))) as look:
        rows = look.all_rows(Selection(queue="episodes"))
        assert len(rows) > 0
        record = look.record(int(rows[0]["number"]), int(rows[0]["part"]))
        assert "of another version" in look.index.meta.followed.note
        assert "unjudged" in views.row_fields(rows[0], look.index.meta)["flags"]
        story = tell(look, subject_of(f"ticket:{rows[0]['ticket']}"))
    assert record.unknown == ["header.colour"]
    assert any("another schema" in remark for remark in record.remarks)
    assert record.arrays["tokens"].size
    assert {fact.kind for fact in story.facts} == {"put"}
    assert story.note


def test_an_event_that_cannot_be_read_at_all_is_counted(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", [*entries[:50], Entry(entries[50].now, b"\xc1 no msgpack", ()), *entries[50:]])
    _, words = said(run)
    assert any("unreadable: 1 event is not" in line for line in words)


def test_a_journal_without_anything_in_it_is_no_error(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "journal").mkdir(parents=True)
    assert said(run) == (0, [])
    log_of(run).write_bytes(bytes(BLOCK))
    found, words = said(run)
    assert found == 0
    assert any("head is damaged" in line for line in words)


def test_a_fold_that_decides_otherwise_than_the_recorded_broker_is_found_out(tmp_path: Path, entries: list[Entry]) -> None:
    """As after a change of the core: here it never hears that a stage is ready, so it gives that stage nothing."""
    place = next(
        n for n, entry in enumerate(entries) if b"hello" in entry.event and b"rollout-0" in entry.event and b"\xa5ready\xc3" in entry.event
    )
    unheard = Entry(entries[place].now, encode_event(Tick()), ())
    with Look(open_run(str(write_run(tmp_path / "run", [*entries[:place], unheard, *entries[place + 1 :]])))) as look:
        look.catch_up()
        rows = look.all_rows(Selection(queue="episodes"))
        assert "the broker that was recorded decided otherwise" in look.index.meta.followed.note
        assert {tuple(views.row_fields(row, look.index.meta)["flags"]) for row in rows} <= {("unjudged",), ("eval", "unjudged")}


def test_what_somebody_put_beside_the_segments_is_not_taken_for_one(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries, segment_bytes=30_000)
    whole = said(write_run(tmp_path / "whole", entries, segment_bytes=30_000))
    (run / "journal" / "00000001 (copy).log").write_bytes(log_of(run, 1).read_bytes())
    (run / "journal" / "9.log").mkdir()
    assert said(run) == whole
    log_of(run, 99_999_999).mkdir()
    with pytest.raises(JournalError, match=r"99999999\.log: has the name of a segment and is no file"):
        said(run)
