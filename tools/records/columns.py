"""A column of fixed-width rows: a file that only grows, or the same kept in memory behind what a file holds already."""

from __future__ import annotations

from pathlib import Path

import numpy as np


class Column:
    """Rows of `kind`. How many of them count is for the owner to know: rows behind that are written over."""

    def __init__(self, path: Path, kind: np.dtype, *, writes: bool) -> None:
        self._path, self._kind, self._writes = path, kind, writes
        self._behind = bytearray()
        self._from_file = path.stat().st_size // kind.itemsize if path.is_file() else 0

    def write(self, at: int, data: bytes) -> None:
        """Rows from number `at` on; what stood there goes."""
        size = self._kind.itemsize
        if self._writes:
            with self._path.open("r+b" if self._path.is_file() else "wb") as file:
                file.seek(at * size)
                file.truncate()
                file.write(data)
            return
        if at < self._from_file:
            self._from_file = at
            self._behind.clear()
        del self._behind[(at - self._from_file) * size :]
        self._behind += data

    def read(self, count: int) -> np.ndarray:
        """The first `count` rows."""
        if not count:
            return np.empty(0, self._kind)
        stored = min(count, self._from_file) if not self._writes else count
        rows = np.memmap(self._path, self._kind, "r", shape=(stored,)) if stored else np.empty(0, self._kind)
        if stored == count:
            return rows
        return np.concatenate([rows, np.frombuffer(bytes(self._behind), self._kind)[: count - stored]])
