"""A disk that fails.

Nothing is acknowledged that it does not hold, a full one is waited for, a broken one ends the broker.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.journal import Journal
from broker.journal.files import write_fully
from broker.journal.format import BLOCK
from schemas.errors import JournalError
from tests.broker.journal.faulty_files import BufferedFiles, FaultyFiles
from tests.broker.journal.writing import SOME, opened, read
from tests.skeleton.waiting import until


def test_nothing_is_durable_before_the_sync_that_covers_it_returns(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal, _ = opened(tmp_path, files=files)
    journal.append(*SOME[0])
    journal.commit()
    files.sync_may_go.clear()
    syncs = files.calls.count("fdatasync")
    journal.append(*SOME[1])
    journal.want()
    until(lambda: files.calls.count("fdatasync") > syncs, "the writer syncs")
    journal.append(*SOME[2])
    journal.want()
    assert journal.durable == 0
    files.sync_may_go.set()
    journal.commit()
    assert journal.durable == 2
    journal.close()


def test_what_arrives_while_a_batch_is_on_its_way_goes_in_one_commit_behind_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal, _ = opened(tmp_path, files=files)
    journal.append(*SOME[0])
    journal.commit()
    files.sync_may_go.clear()
    journal.append(*SOME[1])
    journal.want()
    until(lambda: files.calls[-1] == "fdatasync", "the writer syncs")
    writes = files.calls.count("pwrite")
    for entry in SOME[2:]:
        journal.append(*entry)
        journal.want()
    files.sync_may_go.set()
    journal.commit()
    assert files.calls.count("pwrite") == writes + 1
    journal.close()
    assert read(tmp_path) == SOME


def test_a_segments_name_is_on_disk_before_anything_in_it_is_acknowledged(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal, _ = opened(tmp_path, 2 * BLOCK, files=files)
    for entry in SOME:
        journal.append(*entry)
        journal.commit()
        named = [call for call in files.calls if call in ("rename", "sync_directory")]
        assert named[-1] == "sync_directory", "a name was acknowledged from without a sync"
    assert files.calls.count("rename") > 2
    journal.close()


@pytest.mark.parametrize("most", [1, 700, BLOCK - 1, BLOCK, BLOCK + 1])
def test_writes_that_take_less_than_given_are_completed(tmp_path: Path, most: int) -> None:
    for files in (FaultyFiles(), FaultyFiles()):
        files.most = most
        file = files.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        data = os.urandom(3 * BLOCK)
        write_fully(files, file, data, 0)
        files.close(file)
        assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("most", [BLOCK, 3 * BLOCK])
def test_a_batch_written_in_pieces_is_whole(tmp_path: Path, most: int) -> None:
    files = FaultyFiles()
    files.most = most
    journal, _ = opened(tmp_path, files=files)
    journal.append(b"large", 1.0, [b"x" * 50_000])
    journal.close()
    assert read(tmp_path) == [(b"large", 1.0, [b"x" * 50_000])]


def test_an_interrupted_write_is_taken_up_again(tmp_path: Path) -> None:
    interrupted: list[int] = []

    def fault(call: str, count: int) -> None:
        if call == "pwrite" and len(interrupted) < 5:
            interrupted.append(count)
            raise InterruptedError(errno.EINTR, "interrupted")

    journal, _ = opened(tmp_path, files=FaultyFiles(fault))
    journal.append(*SOME[1])
    journal.close()
    assert len(interrupted) == 5
    assert read(tmp_path) == [SOME[1]]


@pytest.mark.parametrize("refuses_at_open", [True, False])
def test_a_file_system_without_direct_writes_is_written_through_its_cache(tmp_path: Path, refuses_at_open: bool) -> None:
    journal, _ = opened(tmp_path, 2 * BLOCK, BufferedFiles(refuses_at_open=refuses_at_open))
    for entry in SOME:
        journal.append(*entry)
        journal.commit()
    journal.close()
    assert read(tmp_path) == SOME


# --- broken --------------------------------------------------------------------------------------------------------------------


def test_a_failed_sync_stops_the_broker_and_is_never_tried_again(tmp_path: Path) -> None:
    failed: list[int] = []

    def fault(call: str, count: int) -> None:
        if failed:
            failed.append(count)
        if call == "fdatasync" and breaks:
            failed.append(count)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    breaks = False
    files = FaultyFiles(fault)
    journal, _ = opened(tmp_path, files=files)
    journal.append(*SOME[0])
    journal.commit()
    breaks = True
    journal.append(*SOME[1])
    with pytest.raises(JournalError, match="cannot be written.*nothing that it did not hold was acknowledged"):
        journal.commit()
    assert journal.durable == 0
    with pytest.raises(JournalError, match="cannot be written"):
        journal.settle()
    journal.append(*SOME[2])
    with pytest.raises(JournalError):
        journal.commit()
    with pytest.raises(JournalError):
        journal.close()
    assert len(failed) == 1, "the disk was asked again"
    found = read(tmp_path)
    assert found[:1] == SOME[:1]
    assert found in (SOME[:1], SOME[:2])


# --- full ----------------------------------------------------------------------------------------------------------------------


def filled(folder: Path, room: int) -> tuple[Journal, FaultyFiles, int]:
    """A journal of 20 KB entries on a disk of `room` bytes, filled until it says that it is short.

    And how many entries that took.
    """
    files = FaultyFiles()
    files.room = room
    journal, _ = opened(folder, 1 << 20, files)
    count = 0
    while not journal.is_short:
        journal.append(b"event", float(count), [bytes(20_000)])
        journal.commit()
        count += 1
    return journal, files, count


def test_a_disk_that_fills_up_is_told_while_there_is_still_room_for_answers(tmp_path: Path) -> None:
    journal, files, count = filled(tmp_path, 3 << 20)
    for _ in range(10):
        journal.append(b"a refusal", 1.0)
        journal.commit()
    assert journal.durable == count + 9
    files.room = None
    until(lambda: not journal.is_short, "the disk is asked again")
    journal.append(b"goes on", 2.0)
    journal.commit()
    journal.close()
    assert len(read(tmp_path)) == count + 11


def test_what_a_full_disk_cannot_take_is_cut_back_held_and_written_once_there_is_room(tmp_path: Path) -> None:
    journal, files, count = filled(tmp_path, 3 << 20)
    held = [b"held", 1.0, [bytes(5 << 20)]]
    number = journal.append(*held)  # type: ignore[arg-type]
    journal.want()
    until(lambda: "truncate" in files.calls, "the batch is cut back")
    assert journal.durable == count - 1
    assert journal.is_short
    last = sorted(tmp_path.glob("*.log"))[-1]
    assert last.stat().st_size % BLOCK == 0
    journal.append(b"and what came meanwhile", 2.0)
    journal.want()
    assert journal.durable == count - 1
    files.room = None
    journal.commit()
    assert journal.durable == number + 1
    until(lambda: not journal.is_short, "all is well")
    journal.close()
    assert read(tmp_path)[-2:] == [tuple(held), (b"and what came meanwhile", 2.0, [])]


def test_a_broker_that_ends_on_a_full_disk_says_so(tmp_path: Path) -> None:
    journal, _, count = filled(tmp_path, 3 << 20)
    journal.append(b"held", 1.0, [bytes(5 << 20)])
    with pytest.raises(JournalError, match=r"No space left.*free room"):
        journal.close()
    assert len(read(tmp_path)) == count


def test_too_much_waiting_for_the_disk_is_told(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal, _ = opened(tmp_path, files=files)
    files.sync_may_go.clear()
    taken = 0
    while not journal.is_behind:
        journal.append(b"large", 0.0, [bytes(8 << 20)])
        journal.want()
        taken += 8
    assert taken == 32
    files.sync_may_go.set()
    journal.commit()
    assert not journal.is_behind
    journal.close()
