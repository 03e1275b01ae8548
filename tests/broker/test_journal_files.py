"""A journal's folder may hold what is not the journal's: it is left alone, and where it could be meant it is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.journal import Contents, Journal
from broker.journal import checkpoint as checkpoints
from broker.journal.format import BLOCK
from schemas.errors import JournalError
from tests.broker.journal.writing import SOME, opened, read, segments, write

COPIES = ("00000001 (copy).log", "00000001.log.log", "1.log", "000000001.log", "00000001.LOG", "0000000000000008 (copy).checkpoint")


def with_checkpoint(folder: Path) -> Path:
    journal, _ = opened(folder, segment_bytes=2 * BLOCK)
    for entry in SOME:
        journal.append(*entry)
        journal.commit()
    journal.checkpoint(b"", Contents(placed={}, inline={}), 8.0)
    journal.close()
    return folder


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_has_nearly_the_name_of_a_segment_or_checkpoint_is_neither_read_nor_removed(tmp_path: Path, name: str, kind: str) -> None:
    stray = with_checkpoint(tmp_path) / name
    stray.mkdir() if kind == "folder" else shutil.copy(segments(tmp_path)[1], stray)
    assert read(tmp_path) == SOME
    journal, _ = opened(tmp_path)
    assert [found.number for found in journal.checkpoints()] == [len(SOME)]
    journal.append(b"behind it", 9.0)
    journal.checkpoint(b"", Contents(placed={}, inline={}), 9.0)
    journal.close()
    assert len(read(tmp_path)) == len(SOME) + 1
    assert stray.exists()


@pytest.mark.parametrize("kind", ["folder", "nothing"])
def test_what_has_the_name_of_a_segment_and_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    write(tmp_path, SOME)
    stray = tmp_path / "99999999.log"
    stray.mkdir() if kind == "folder" else stray.symlink_to(tmp_path / "not there")
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match=rf"{stray}: has the name of a segment and is no file"):
        list(journal.read())
    journal.close()


def test_a_folder_with_the_name_of_a_checkpoint_costs_nothing(tmp_path: Path) -> None:
    stray = checkpoints.path_of(with_checkpoint(tmp_path), 4)
    stray.mkdir()
    journal = Journal(tmp_path)
    assert [found.number for found in journal.checkpoints()] == [len(SOME)]
    assert len(list(journal.read())) == len(SOME)
    for now in (9.0, 10.0, 11.0):
        journal.append(b"more", now)
        journal.checkpoint(b"", Contents(placed={}, inline={}), now)
        journal.finish_checkpoint()
    journal.close()
    assert [int(path.stem) for path in checkpoints.paths(tmp_path)] == [len(SOME) + 3, len(SOME) + 2]
    assert stray.is_dir()


def test_no_segment_gets_a_name_that_nobody_would_read(tmp_path: Path) -> None:
    write(tmp_path, SOME)
    (tmp_path / "99999999.log").write_bytes(b"")
    journal, _ = opened(tmp_path)
    with pytest.raises(JournalError, match=r"99999999\.log: no segment can follow this one"):
        journal.append(b"event", 9.0)
    journal.close()


def test_what_a_dead_broker_was_making_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ours = [tmp_path / name for name in ("00000007.partial", "0000000000000008.partial")]
    for path in (*ours, tmp_path / "notes.partial"):
        path.write_bytes(b"half")
    (tmp_path / "00000009.partial").mkdir()
    Journal(tmp_path).close()
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == ["00000009.partial", "notes.partial"]
