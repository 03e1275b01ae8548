"""A journal without descriptors: what it has to open is open already."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.journal.files import DiskFiles
from broker.journal.spares import SPARES, SparedFiles
from tests.broker.journal.writing import SOME, opened, read


@pytest.fixture
def none_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Once something stands in the list, no file can be opened."""
    full: list[int] = []
    real = os.open

    def opening(*arguments: object, **more: object) -> int:
        if full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", opening)
    yield full
    full.clear()


def spared(folder: Path) -> SparedFiles:
    """With its spares; skips where the file system has none."""
    files = SparedFiles(folder)
    files.close(os.open("/", os.O_RDONLY))
    if len(files._spares) < SPARES:
        pytest.skip("no O_TMPFILE on this file system")
    return files


def test_segments_go_on_from_spares_and_what_they_hold_is_read_back(tmp_path: Path, none_left: list[int]) -> None:
    journal, _ = opened(tmp_path, 2 * 4096, files=spared(tmp_path))
    journal.append(*SOME[0])
    journal.commit()
    none_left.append(1)
    for entry in SOME[1:6]:
        journal.append(*entry)
        journal.commit()
    none_left.clear()
    journal.close()
    assert len(list(tmp_path.glob("*.log"))) > 2
    assert read(tmp_path) == SOME[:6]
    assert not list(tmp_path.glob("*.partial"))


def test_out_of_spares_the_error_is_the_systems(tmp_path: Path, none_left: list[int]) -> None:
    files = spared(tmp_path)
    none_left.append(1)
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    made = [files.open(tmp_path / f"{number}", flags) for number in range(SPARES)]
    with pytest.raises(OSError, match="Too many open files"):
        files.open(tmp_path / "one more", flags)
    none_left.clear()
    for file in made:
        DiskFiles().pwrite(file, b"x", 0)
        files.close(file)
    assert (tmp_path / "0").read_bytes() == b"x"
    assert len(files._spares) == SPARES


def test_a_spare_takes_the_place_of_a_file_that_is_there(tmp_path: Path, none_left: list[int]) -> None:
    files = spared(tmp_path)
    (tmp_path / "old").write_bytes(b"old and long")
    none_left.append(1)
    file = files.open(tmp_path / "old", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    files.pwrite(file, b"new", 0)
    assert (tmp_path / "old").read_bytes() == b"new"
    files.sync_directory(tmp_path)
    files.close(file)
