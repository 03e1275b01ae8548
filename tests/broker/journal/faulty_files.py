"""A disk that does as it is told: writes less, is interrupted, is full, fails, dies, or waits. Nothing is really
synced: no test cuts the power of the machine that it runs on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from broker.journal.files import DiskFiles


class FaultyFiles(DiskFiles):
    """`fault(call, count)` is asked before each call, with its name and how many there were.

    What it raises, the call raises.
    """

    def __init__(self, fault: Callable[[str, int], None] = lambda call, count: None) -> None:
        self.fault = fault
        self.calls: list[str] = []
        self.room: int | None = None
        """Bytes that files may hold in all, room allotted among them; None: any."""
        self.most = 1 << 30
        """Bytes that one write takes."""
        self.sync_may_go = threading.Event()
        self.sync_may_go.set()
        self._sizes: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def _ask(self, call: str) -> None:
        self.calls.append(call)
        self.fault(call, len(self.calls))

    def _grow(self, file: int, size: int) -> None:
        name = self._names[file]
        held = sum(self._sizes.values()) - self._sizes.get(name, 0)
        if self.room is not None and size > self._sizes.get(name, 0) and held + size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._sizes[name] = max(size, self._sizes.get(name, 0))

    def open(self, path: Path, flags: int) -> int:
        self._ask("open")
        file = super().open(path, flags)
        self._names[file] = path.name
        return file

    def pwrite(self, file: int, data: memoryview | bytes, offset: int) -> int:
        self._ask("pwrite")
        self._grow(file, offset + min(len(data), self.most))
        return super().pwrite(file, memoryview(data)[: self.most], offset)

    def fdatasync(self, file: int) -> None:
        self._ask("fdatasync")
        self.sync_may_go.wait()

    def sync_directory(self, directory: Path) -> None:
        self._ask("sync_directory")

    def allocate(self, file: int, offset: int, size: int) -> None:
        self._ask("allocate")
        self._grow(file, offset + size)
        super().allocate(file, offset, size)

    def truncate(self, file: int, size: int) -> None:
        self._ask("truncate")
        self._sizes[self._names[file]] = size
        super().truncate(file, size)

    def rename(self, old: Path, new: Path) -> None:
        self._ask("rename")
        self._sizes[new.name] = self._sizes.pop(old.name, 0)
        self._names = {file: new.name if name == old.name else name for file, name in self._names.items()}
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._ask("unlink")
        self._sizes.pop(path.name, None)
        super().unlink(path)


class BufferedFiles(DiskFiles):
    """A file system without direct writes."""

    def __init__(self, *, refuses_at_open: bool) -> None:
        self._refuses_at_open = refuses_at_open
        self._direct: set[int] = set()

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_DIRECT and self._refuses_at_open:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        file = super().open(path, flags & ~os.O_DIRECT)
        (self._direct.add if flags & os.O_DIRECT else self._direct.discard)(file)
        return file

    def pwrite(self, file: int, data: memoryview | bytes, offset: int) -> int:
        if file in self._direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().pwrite(file, data, offset)


def dead_from(count: int) -> Callable[[str, int], None]:
    """The process is gone from the call of that number on: nothing reaches the disk any more."""

    def fault(call: str, number: int) -> None:
        if number >= count:
            raise OSError(errno.EIO, "gone")

    return fault
