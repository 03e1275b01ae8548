"""A batch in the making: entries laid out in a page-aligned buffer that goes to disk as it is.

Owns one buffer, used over and over (a page touched for the first time costs more than its copy). Knows where its
first byte will lie on disk from the moment it is begun, so that an entry's position is known when it is appended.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from broker.journal.format import BATCH_HEAD, BLOCK, ROW, BatchHead, Position, entry_bytes, padded, put_entry, seal_batch
from schemas.codec import Frame

BUFFER_BYTES = 1 << 20
BUFFER_KEPT_BYTES = 64 << 20
"""A buffer that one giant batch made larger than this is given back."""


class Batch:
    """Entries `first` to `last`, to be written at `position`."""

    def __init__(self) -> None:
        self._allot(BUFFER_BYTES)
        self.begin(Position(0, BLOCK))

    def _allot(self, size: int) -> None:
        self._capacity = padded(size)
        self._buffer = memoryview(mmap.mmap(-1, self._capacity))

    def begin(self, position: Position) -> None:
        """Empties the batch; it will lie at `position`."""
        if self._capacity > BUFFER_KEPT_BYTES:
            self._allot(BUFFER_BYTES)
        self.position = position
        self.first = 0
        self._used = BATCH_HEAD.size
        self._rows: list[tuple[int, int]] = []

    def append(self, number: int, now: float, event: bytes, frames: Sequence[Frame]) -> Position:
        """Adds entry `number`; returns where it will lie."""
        rows, used = self._rows, self._used
        needed = used + entry_bytes(event, frames) + ROW.size * (len(rows) + 1)
        if needed > self._capacity:
            self._grow(padded(needed))
        if not rows:
            self.first = number
        row = put_entry(self._buffer, used, number, now, event, frames)
        rows.append(row)
        self._used = used + row[0]
        return Position(self.position.segment, self.position.offset + used)

    def _grow(self, needed: int) -> None:
        old, used = self._buffer, self._used
        self._allot(max(needed, 2 * self._capacity))
        self._buffer[:used] = old[:used]

    def seal(self, epoch: int, previous: int) -> BatchHead:
        """Completes the bytes; no entry may follow."""
        return seal_batch(self._buffer, self.first, self.entry_bytes, self._rows, epoch, previous)

    @property
    def count(self) -> int:
        """Entries."""
        return len(self._rows)

    @property
    def last(self) -> int:
        """Number of the last entry."""
        return self.first + len(self._rows) - 1

    @property
    def entry_bytes(self) -> int:
        """Bytes of all entries."""
        return self._used - BATCH_HEAD.size

    @property
    def bytes(self) -> int:
        """Bytes on disk, in whole blocks; 0 where empty."""
        return padded(self._used + ROW.size * len(self._rows)) if self._rows else 0

    @property
    def end(self) -> Position:
        """Where the next batch of this segment begins."""
        return Position(self.position.segment, self.position.offset + self.bytes)

    @property
    def data(self) -> memoryview:
        """What goes to disk, once sealed."""
        return self._buffer[: self.bytes]
