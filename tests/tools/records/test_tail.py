"""How a journal ends is told without a claim that does not follow from what is there."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from broker.journal import Checkpoint, Contents, Position
from broker.journal import checkpoint as checkpoints
from broker.journal.files import DiskFiles
from broker.journal.format import BLOCK
from schemas.errors import JournalError
from tests.tools.records.recorded import entries_of, whole_entries, write_run
from tests.tools.sim.scenarios import SLOW, a_scenario
from tools.records import views
from tools.records.command import run_inspect
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.replay.whatif import Asked, run_whatif
from tools.sim.driver import Entry

ACKNOWLEDGED = "nothing of it was acknowledged"


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return entries_of()


@pytest.fixture
def run(tmp_path: Path, entries: list[Entry]) -> Path:
    """A run that has ended, and says so."""
    directory = write_run(tmp_path / "run", entries)
    (directory / "summary.json").write_text(json.dumps({"ended": "done", "steps": 2}))
    return directory


def cut_short(run: Path) -> None:
    """Two thirds of it are left."""
    log = run / "journal" / "00000000.log"
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 2 // 3 + 5])


def overview(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_inspect(str(run), Selection(), record="", episode="", slowest=0, as_json=False) == 0
    return capsys.readouterr().out


def test_a_finished_run_whose_journal_was_cut_ends_earlier_than_its_summary_says(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "earlier" not in overview(run, capsys)
    cut_short(run)
    said = overview(run, capsys)
    last = whole_entries(run) - 1
    assert f'the journal ends earlier than its summary says (summary.json: "done"): what was behind entry {last:,} is gone' in said
    assert "bytes are no whole commit: damaged, or cut off by somebody" in said
    assert "the journal ends before the run did (in phase running)" in said
    assert ACKNOWLEDGED not in said


def test_a_checkpoint_of_the_broker_knows_of_what_was_cut_off_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "summary.json").unlink()
    made = Checkpoint(number=whole_entries(run), now=1.0, position=Position(0, BLOCK), state=b"", arena=Contents(placed={}, inline={}))
    checkpoints.write(DiskFiles(), run / "journal", made)
    assert "earlier" not in overview(run, capsys)
    cut_short(run)
    said = overview(run, capsys)
    assert f"the journal ends earlier than its broker's checkpoint says ({made.number:,} entries)" in said
    assert ACKNOWLEDGED not in said


def test_of_a_run_that_was_cut_off_it_is_said_what_that_cost(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "summary.json").unlink()
    cut_short(run)
    said = overview(run, capsys)
    assert f"cut off when the broker died; {ACKNOWLEDGED}" in said
    assert "earlier" not in said


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_of_a_file_that_is_no_segment_nothing_is_claimed(run: Path, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "journal" / "00000077.log").write_bytes(random.Random(size).randbytes(size))
    said = overview(run, capsys)
    assert "the run has ended" in said
    assert "missing: segments 00000001 to 00000076 are not there" in said
    assert "damage: 00000077.log, byte 0: the segment's head is damaged" in said
    assert ("00000077.log has no head, so nothing is known of what they were" in said) == (size > BLOCK)
    assert ACKNOWLEDGED not in said
    assert "earlier" not in said


def test_bytes_behind_a_run_that_had_ended_are_no_brokers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run / "journal" / "00000000.log").open("ab") as file:
        file.write(b"something")
    said = overview(run, capsys)
    assert "the last 9 bytes are no whole commit: put there by somebody, for the run had ended before" in said
    assert ACKNOWLEDGED not in said


def test_a_journal_of_empty_files_has_no_decisions_to_ask_about(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for segment in (0, 1):
        (run / "journal" / f"{segment:08d}.log").write_bytes(b"")
    with pytest.raises(JournalError, match="no entry of its journal can be read"):
        run_whatif(Asked(run=str(run), policies=("placement=least_in_flight",)))
    assert "tidemill: 00000000.log, byte 0: the segment's head is damaged" in capsys.readouterr().err
    assert "all of it is gone" in overview(run, capsys)


def test_damage_that_costs_no_entry_is_told_by_whatif_as_well(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "journal" / "00000001.log").write_bytes(bytes(BLOCK) + b"something")
    assert run_whatif(Asked(run=str(run), policies=("placement=least_in_flight",))) == 0
    said = capsys.readouterr()
    assert "decisions" in said.out
    assert said.err.splitlines() == [
        "tidemill: 00000001.log, byte 0: the segment's head is damaged", "tidemill: the journal's last 9 bytes are no whole commit",
    ]  # fmt: skip


def test_what_is_counted_is_named_by_its_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert " in 1 segment\n" in overview(run, capsys)


def test_failures_are_counted_by_tries_and_by_tickets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    laws = msgspec.structs.replace(SLOW, env_failure=0.4)
    failing = write_run(tmp_path / "run", entries_of(a_scenario(1, laws=laws, steps=2, groups_per_step=2, members=2)))
    (line,) = [line for line in overview(failing, capsys).splitlines() if line.startswith("failures: ")]
    with Look(open_run(str(failing))) as look:
        rows = look.index.meta.followed.failures
    tickets = [row.ticket for row in rows if row.final]
    assert len(tickets) == len(set(tickets)) > 1
    tries = len(rows) - len(tickets)
    assert tries > 1
    assert line == f"failures: {tries} failed tries, {len(tickets)} failed tickets (`--failed` lists them)"
    assert views.failures_line(2, 1) == "failures: 1 failed try, 1 failed ticket (`--failed` lists them)"
