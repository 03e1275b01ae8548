"""The index is derived: made, continued and thrown away without anybody being asked, and always says what the journal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.core.events import decode_event, puts_of
from tests.tools.records.recorded import append, entries_of, small, tidemill, whole_entries, write_run
from tests.tools.sim.scenarios import a_scenario
from tools.records import following, scanning, survey, views
from tools.records.looking import Look
from tools.records.opening import Run, open_run
from tools.records.selection import Selection
from tools.records.story import subject_of
from tools.records.telling import tell
from tools.sim.driver import Entry
from tools.sim.scenario import Faults, Kill


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return entries_of()


def summed(run: Path) -> tuple[Any, ...]:
    """All that an index says, in a form that two can be compared by."""
    with Look(open_run(str(run))) as look:
        look.catch_up()
        known, rows = look.index.meta.followed, look.all_rows(Selection(begin=0.0))
        events = views.events_of(look.index.meta)
        shown = [views.row_fields(row, look.index.meta) for row in rows]
        return shown, look.index.totals(), known.steps, known.endings, events, known.next_number, known.note


def test_every_record_of_every_commit_has_a_row(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    wanted = [(header.queue, header.ticket) for entry in entries for header in puts_of(decode_event(entry.event))]
    with Look(open_run(str(run))) as look:
        rows = look.all_rows(Selection(begin=0.0))
        all_found = [(look.index.meta.queues[row["queue"]], int(row["ticket"])) for row in rows]
    found = [(queue, ticket) for queue, ticket in all_found if queue != "tickets"]
    assert found == [(queue, -1 if ticket is None else ticket) for queue, ticket in wanted]


def test_the_tickets_that_the_broker_made_are_rows_too_and_their_endings_add_up(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    with Look(open_run(str(run))) as look:
        look.catch_up()
        known, totals = look.index.meta.followed, look.index.totals()
    assert totals["tickets"].records == sum(known.endings.values())
    assert (known.endings["trained"], known.phase, known.note) == (8, "closed", "")


def test_an_index_that_grew_with_the_run_equals_one_made_at_its_end(tmp_path: Path, entries: list[Entry]) -> None:
    run, whole = tmp_path / "run", write_run(tmp_path / "whole", entries, segment_bytes=30_000)
    third = len(entries) // 3
    for start in (0, third, 2 * third):
        part = entries[start : start + third if start < 2 * third else len(entries)]
        write_run(run, part, segment_bytes=30_000) if start == 0 else append(run, part, segment_bytes=30_000)
        said = summed(run)
    again = summed(whole)
    assert said[1:] == again[1:]


def test_stopped_anywhere_it_goes_on_from_what_was_saved(tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SNAPSHOT_ENTRIES", 40)
    monkeypatch.setattr(scanning, "BLOCK_ROWS", 16)
    run, whole = write_run(tmp_path / "run", entries, commit_every=5), write_run(tmp_path / "whole", entries, commit_every=5)
    for _ in range(4):
        with Look(open_run(str(run))) as look:
            blocks = look.rows(Selection(begin=0.0))
            next(blocks, None)
            next(blocks, None)
            blocks.close()
            look.follow(look.index.meta.followed.next_number + 60)
    assert summed(run) == summed(whole)


def test_a_stale_index_is_made_anew(tmp_path: Path, entries: list[Entry]) -> None:
    run, other = write_run(tmp_path / "run", entries), write_run(tmp_path / "other", entries_of(small(seed=5)))
    summed(run)
    for name in ("00000000.log",):
        (run / "journal" / name).write_bytes((other / "journal" / name).read_bytes())
    assert summed(run)[1:] == summed(other)[1:]


def test_a_damaged_index_is_made_anew(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    before = summed(run)
    (run / "journal" / "index" / "meta.msgpack").write_bytes(b"\x00garbage")
    assert summed(run) == before


def test_where_it_may_not_write_it_keeps_the_index_elsewhere(tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = write_run(tmp_path / "run", entries)
    (run / "journal" / "index").write_text("a file where the folder would be")
    with Look(open_run(str(run))) as look:
        look.catch_up()
        assert not look.index.directory.is_relative_to(run)
        assert look.index.directory.stat().st_mode & 0o077 == 0
        assert look.index.meta.followed.next_number == len(entries)


def test_a_second_reader_does_not_mix_with_the_first(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    with Look(open_run(str(run))) as first, Look(open_run(str(run))) as second:
        assert (first.index.writes, second.index.writes) == (True, False)
        assert len(second.all_rows(Selection(begin=0.0))) == len(first.all_rows(Selection(begin=0.0))) > 0


def test_nothing_but_the_index_is_written(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    summed(run)
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "index" not in path.parts}
    assert after == before


def test_a_run_whose_broker_holds_the_lock_is_read_and_called_live(tmp_path: Path, entries: list[Entry]) -> None:
    from broker.journal import Journal

    run = write_run(tmp_path / "run", entries)
    assert not Run("run", run).is_live
    journal = Journal(run / "journal")
    try:
        assert Run("run", run).is_live
        assert whole_entries(run) == len(entries)
        assert summed(run)[5] == len(entries)
    finally:
        journal.close()
    assert not Run("run", run).is_live


def test_failures_and_lost_leases_of_a_troubled_run_are_found(tmp_path: Path) -> None:
    kills = tuple(Kill(name=name, at=at) for name, at in (("env-0", 3.0), ("rollout-0", 4.0), ("env-1", 5.0)))
    run = write_run(tmp_path / "run", entries_of(a_scenario(3, faults=Faults(kills=kills, duplicated=0.05, torn=0.02))))
    with Look(open_run(str(run))) as look:
        look.catch_up()
        known, totals = look.index.meta.followed, look.index.totals()
        attempts = look.all_rows(Selection(begin=0.0))["attempt"].max()
    assert attempts > 1
    assert known.note == ""
    assert sum(of.refused for of in totals.values()) > 0
    assert totals["tickets"].records == sum(known.endings.values())


def test_segments_that_other_processes_scan_ahead_give_the_same_rows(
    tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = (write_run(tmp_path / name, entries, segment_bytes=30_000) for name in ("run", "whole"))
    assert len(list((run / "journal").glob("*.log"))) > 3
    monkeypatch.setattr(survey, "AHEAD_BYTES", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    helped = summed(run)
    monkeypatch.setattr(survey, "AHEAD_BYTES", 1 << 40)
    assert helped == summed(whole)
    assert not list((run / "journal" / "index").glob("*.part"))


def test_a_look_at_a_stretch_of_time_reads_only_the_segments_it_lies_in(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries, segment_bytes=30_000)
    middle = entries[len(entries) // 2].now
    wanted = Selection(queue="turns", begin=middle, end=middle + 0.1)
    with Look(open_run(str(run))) as look:
        look.follow = lambda upto=None: None  # type: ignore[method-assign]
        found = [int(row["number"]) for row in look.all_rows(wanted)]
        assert 0 < len(look.index.meta.segments) < len(look.index.sizes())
    with Look(open_run(str(run))) as look:
        look.scan()
        assert found == [int(row["number"]) for row in look.all_rows(wanted)]
        assert look.index.gaps() == []


def test_the_slowest_are_those_that_were_held_longest(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    shown = [
        json.loads(line) for line in tidemill("inspect", str(run), "--stage", "reward", "--slowest", "3", "--json").stdout.splitlines()
    ]
    assert [line["queue"] for line in shown] == ["scored"] * 3
    assert [line["took"] for line in shown] == sorted((line["took"] for line in shown), reverse=True)
    with Look(open_run(str(run))) as look:
        facts = tell(look, subject_of(f"ticket:{shown[0]['ticket']}")).facts
        longest = max(look.all_rows(Selection(queue="scored"))["took"])
    (held,) = [fact.seconds for fact in facts if fact.kind == "acked" and fact.queue == "episodes"]
    assert shown[0]["took"] == pytest.approx(held, abs=1e-6)
    assert shown[0]["took"] == pytest.approx(longest, abs=1e-6)
