"""A look that takes its time says so, is done once, can be broken off and goes on; nothing of it outlives its reader."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.records.recorded import HOUSE, entries_of, write_run
from tools.records import bar as bars
from tools.records import command, ending
from tools.records.bar import Bar
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.records.views import UNFOLLOWED
from tools.sim.driver import Entry

STARTS_A_SCAN = """
import sys, time
from pathlib import Path
from tools.records.survey import _start

print(_start(Path(sys.argv[1]), Path(sys.argv[2]), [0] * 10_000).pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return entries_of()


@pytest.fixture
def long_run(tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that counts as a large one."""
    monkeypatch.setattr(ending, "FOLLOWED_BYTES", 0)
    monkeypatch.setattr(command, "LONG_BYTES", 0)
    return write_run(tmp_path / "run", entries, segment_bytes=30_000)


def overview(run: Path) -> None:
    assert command.run_inspect(str(run), Selection(), record="", episode="", slowest=0, as_json=False) == 0


def test_what_the_broker_did_is_followed_once_behind_the_overview(
    long_run: Path, entries: list[Entry], capsys: pytest.CaptureFixture[str]
) -> None:
    overview(long_run)
    said = capsys.readouterr()
    assert "making the index of" in said.err
    assert "following what the broker did, once" in said.err
    assert said.out.splitlines()[-1] == "failures: none"
    with Look(open_run(str(long_run))) as look:
        assert look.index.meta.followed.next_number == len(entries)
    overview(long_run)
    assert capsys.readouterr().err == ""


def test_who_does_not_wait_for_it_has_the_overview_all_the_same(
    long_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_look: Look, _upto: int | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Look, "follow", interrupted)
    overview(long_run)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("episodes") for line in lines)
    assert lines[-1].startswith(UNFOLLOWED)


def test_a_second_reader_does_not_follow_for_nothing(long_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Look(open_run(str(long_run))):
        overview(long_run)
    said = capsys.readouterr()
    assert UNFOLLOWED in said.out
    assert "following what the broker did" not in said.err


def test_an_index_that_was_broken_off_goes_on_and_says_so(long_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Look(open_run(str(long_run))) as look:
        blocks = look.rows(Selection(begin=0.0))
        next(blocks)
        next(blocks)
        blocks.close()
        assert look.index.meta.segments
        assert look.index.unscanned()
    overview(long_run)
    assert "once; it goes on, " in capsys.readouterr().err


def test_room_that_was_only_allotted_is_read_once(long_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As behind a broker that was killed."""
    newest = max((long_run / "journal").glob("*.log"))
    with newest.open("ab") as file:
        file.write(bytes(8 << 20))
    overview(long_run)
    with Look(open_run(str(long_run))) as look:
        assert (look.index.unscanned(), look.unfollowed_bytes(), look.torn_bytes) == ({}, 0, 0)
    capsys.readouterr()
    command.run_inspect(str(long_run), Selection(queue="turns"), record="", episode="", slowest=0, as_json=False)
    assert capsys.readouterr().err == ""


def test_a_torn_end_is_said_by_every_look(long_run: Path) -> None:
    newest = max((long_run / "journal").glob("*.log"))
    with newest.open("ab") as file:
        file.write(bytes(4096) + b"half a commit" + bytes(4096))
    for _ in range(2):
        with Look(open_run(str(long_run))) as look:
            look.scan()
            assert look.torn_bytes > 0


def test_a_bar_in_a_file_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "LINE_EVERY_S", 0.0)
    Bar()("reading", 2_000_000, 8_000_000)
    assert capsys.readouterr().err == "tidemill: reading: 25% of 8.0 MB\n"
    Bar(is_quiet=True)("reading", 2_000_000, 8_000_000)
    monkeypatch.setattr(bars, "LINE_EVERY_S", 60.0)
    Bar()("reading", 2_000_000, 8_000_000)
    assert capsys.readouterr().err == ""


def test_a_process_that_scans_ahead_ends_with_a_reader_that_is_killed(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", entries)
    folder = tmp_path / "index"
    folder.mkdir()
    start = [sys.executable, "-c", STARTS_A_SCAN, str(run / "journal"), str(folder)]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True, cwd=HOUSE) as reader:
        assert reader.stdout is not None
        scanner = int(reader.stdout.readline())
        assert is_running(scanner)
        reader.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30.0
    while is_running(scanner) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(scanner)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
