"""What the journal asks of the file system: ten calls behind a Protocol, so that tests can refuse, cut and record them.

`DiskFiles` is the real thing. Reading is not part of it: what is read is checked by digests, whatever the disk says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Each call raises OSError as the call of the same name in `os` does."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor; a file that is made is private to its user."""

    def close(self, file: int) -> None:
        """Never syncs."""

    def pwrite(self, file: int, data: memoryview | bytes, offset: int) -> int:
        """Bytes written, perhaps fewer than given."""

    def fdatasync(self, file: int) -> None:
        """What was written to the file, and what is needed to find it, is on disk."""

    def sync_directory(self, directory: Path) -> None:
        """The directory's names are on disk."""

    def allocate(self, file: int, offset: int, size: int) -> None:
        """Room for these bytes, which read as zeroes."""

    def truncate(self, file: int, size: int) -> None:
        """Cuts the file."""

    def rename(self, old: Path, new: Path) -> None:
        """In place of whatever was there."""

    def unlink(self, path: Path) -> None:
        """Fails where there is none."""


class DiskFiles:
    """The operating system's."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, file: int) -> None:
        os.close(file)

    def pwrite(self, file: int, data: memoryview | bytes, offset: int) -> int:
        return os.pwrite(file, data, offset)

    def fdatasync(self, file: int) -> None:
        os.fdatasync(file)

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def allocate(self, file: int, offset: int, size: int) -> None:
        os.posix_fallocate(file, offset, size)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)


def write_fully(files: Files, file: int, data: memoryview | bytes, offset: int, step: int = 1) -> None:
    """Writes all of `data`, however little each call takes.

    `step`: what a direct file's offsets must be multiples of.
    """
    view, done, idle = memoryview(data), 0, 0
    while done < len(view):
        try:
            took = files.pwrite(file, view[done:], offset + done)
        except InterruptedError:
            continue
        took -= (done + took) % step if done + took < len(view) else 0
        idle = 0 if took > 0 else idle + 1
        if idle > IDLE_WRITES_MAX:
            raise OSError(5, "the disk takes no bytes and names no error")
        done += max(0, took)


IDLE_WRITES_MAX = 100


def write_whole(files: Files, path: Path, data: bytes) -> None:
    """A new file, whole or not at all, its name and content on disk."""
    partial = path.with_suffix(PARTIAL)
    file = files.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        write_fully(files, file, data, 0)
        files.fdatasync(file)
    finally:
        files.close(file)
    files.rename(partial, path)
    files.sync_directory(path.parent)


PARTIAL = ".partial"
"""Suffix of what is being made; whoever finds one at start removes it."""
