"""Files for a broker whose clients have taken every descriptor: some are open ahead, nameless, and get their names when they are needed.

A ROUTER takes connections for as long as there are descriptors, and whoever waits at the door takes each that is closed. So
what the journal will open has to be open already. A spare is a file of `O_TMPFILE`: it has no name and goes with the process.
Where the file system has no such files there are no spares.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

from broker.journal.files import DiskFiles

SPARES = 8
"""Segments and checkpoints that can begin while no descriptor is left; each that is closed meanwhile is tried for anew."""


class SparedFiles(DiskFiles):
    """`DiskFiles` with spares in one directory. Safe from any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spares: list[int] = []
        self._directory_file = -1
        self._lock = threading.Lock()

    def open(self, path: Path, flags: int) -> int:
        try:
            file = super().open(path, flags)
        except OSError as error:
            if error.errno != errno.EMFILE or not flags & os.O_CREAT:
                raise
            file = self._from_spares(path, flags, error)
        self._stock_up()
        return file

    def close(self, file: int) -> None:
        super().close(file)
        self._stock_up()

    def sync_directory(self, directory: Path) -> None:
        if directory != self._directory or self._directory_file < 0:
            super().sync_directory(directory)
        else:
            os.fsync(self._directory_file)

    def _stock_up(self) -> None:
        with self._lock, suppress(OSError):  # none left, or no such files here: then there are as many as there are
            if self._directory_file < 0:
                self._directory_file = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            while len(self._spares) < SPARES:
                self._spares.append(os.open(self._directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def _from_spares(self, path: Path, flags: int, error: OSError) -> int:
        with self._lock:
            if not self._spares or path.parent != self._directory:
                raise error
            spare = self._spares[-1]
            fcntl.fcntl(spare, fcntl.F_SETFL, flags & os.O_DIRECT)  # refused like an open of that kind
            path.unlink(missing_ok=True)
            here = self._directory_file  # named, for without one Python's link does not follow to the file itself
            os.link(f"/proc/self/fd/{spare}", path.name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=True)
            return self._spares.pop()
