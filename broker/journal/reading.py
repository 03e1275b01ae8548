"""Reading a journal back: entries in order, and what is damaged between them.

Opens nothing for writing. Promises: every entry that is whole is yielded once, in order; every entry that is not is
named as `Damage`, with the bytes it lay in. Damage ends nothing: behind a damaged entry the batch's table knows the
next, behind a damaged table entries are looked for one by one, and the next batch is found by its block. What the
last segment ends with, and was never answered for, is `torn`, not damaged.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType

from msgspec import Struct
from msgspec.structs import replace

from broker.journal import format as layout
from broker.journal.format import BATCH_HEAD, BLOCK, ENTRY_HEAD, ENTRY_MAGIC, BatchHead, Entry, Position, SegmentHead
from broker.journal_files import segment_path, segment_paths
from schemas.errors import JournalError

WINDOW_BYTES = 1 << 20


class Damage(Struct, frozen=True):
    """Bytes that are not what was written there, and the entries that are lost with them (none where `last < first`)."""

    position: Position
    bytes: int
    first: int
    last: int
    what: str
    dropped: bool = False
    """Whole segments are not there: the quota's work, or somebody's."""
    foreign: bool = False
    """What stands here was not written behind what stands before it."""

    def __str__(self) -> str:
        lost = f"entries {self.first} to {self.last} are lost" if self.last > self.first else f"entry {self.first} is lost"
        return f"{self.position.segment:08d}.log, byte {self.position.offset}: {self.what}" + (
            f"; {lost}" if self.last >= self.first else ""
        )


class SegmentFile:
    """One segment, read through a window: never mapped, for the writer may cut it under a reader's hands."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._file).st_size
        self._window: bytes = b""
        self._window_at = 0

    def read(self, offset: int, size: int) -> memoryview:
        """Up to `size` bytes; fewer only at the end of the file."""
        start = offset - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window, self._window_at, start = self._load(offset, max(size, WINDOW_BYTES)), offset, 0
        return memoryview(self._window)[start : start + size]

    def _load(self, offset: int, size: int) -> bytes:
        data = os.pread(self._file, size, offset)
        while len(data) < size:
            more = os.pread(self._file, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._file)


def segment_head(path: Path) -> SegmentHead | None:
    """None where it is damaged."""
    with SegmentFile(path) as file:
        head = layout.parse_segment_head(file.read(0, BLOCK))
    return head if head is not None and head.index == int(path.stem) else None


def entry_at(directory: Path, position: Position) -> Entry:
    """One entry by its position. Raises JournalError where it is not there or not whole (its frames apart)."""
    path = segment_path(directory, position.segment)
    try:
        with SegmentFile(path) as file:
            size = layout.entry_size(file.read(position.offset, ENTRY_HEAD.size))
            found = None if size is None else layout.parse_entry(file.read(position.offset, min(size, file.size)), position)
    except FileNotFoundError as error:
        raise JournalError(f"{path}: the segment is gone; the quota may have dropped it") from error
    if found is None:
        raise JournalError(f"{path}: no whole entry at byte {position.offset}")
    return found[0]


def ends_before(directory: Path, position: Position) -> bool:
    """Whether what once stood below `position` in its segment is not there: the segment is gone, or shorter."""
    path = segment_path(directory, position.segment)
    return position.offset > BLOCK and (not path.is_file() or path.stat().st_size < position.offset)


class Scan:
    """All entries from `start` on.

    After its end: `expected` is the next entry's number, `end` where the last segment's content ends.
    """

    def __init__(
        self, directory: Path, start: Position | None = None, expected: int | None = None, sure: int = 0, *, want_frames: bool = True,
        last: int | None = None,
    ) -> None:  # fmt: skip
        """`last`: the segment behind which nothing is read."""
        self._directory = directory
        self._start = start or Position(0, BLOCK)
        self._sure = sure
        self._want_frames = want_frames
        self._last = last
        self.expected = expected
        """None before the first segment is read: then its head says."""
        self.previous: int | None = None
        """Checksum of the last batch; None where it is not known."""
        self.end: Position | None = None
        self.torn_bytes = 0
        """What the last segment holds behind its last whole batch, zeroes apart."""

    def __iter__(self) -> Iterator[Entry | Damage]:
        paths = [path for path in segment_paths(self._directory) if int(path.stem) >= self._start.segment]
        for place, path in enumerate(paths):
            if self._last is not None and int(path.stem) > self._last:
                return
            following = segment_head(paths[place + 1]) if place + 1 < len(paths) else None
            until = following.first if following is not None else None
            yield from self._segment(path, until=until, is_last=place + 1 == len(paths))

    # --- one segment --------------------------------------------------------------------------------------------------------

    def _segment(self, path: Path, *, until: int | None, is_last: bool) -> Iterator[Entry | Damage]:
        self._index, self._until, self._is_last = int(path.stem), until, is_last
        with SegmentFile(path) as self._file:
            offset: int | None = BLOCK
            if self._index == self._start.segment and self._start.offset > BLOCK:
                offset = self._start.offset
            else:
                yield from self._enter()
            self.end = Position(self._index, BLOCK)
            while offset is not None and offset < self._file.size:
                self.end = Position(self._index, offset)
                offset = yield from self._batch(offset)
            if offset is not None:
                self.end = Position(self._index, offset)
            if not is_last:
                yield from self._missing(until, self.end, 0, "the segment is cut short")

    def _enter(self) -> Iterator[Damage]:
        head = layout.parse_segment_head(self._file.read(0, BLOCK))
        here = Position(self._index, 0)
        if head is None or head.index != self._index:
            yield Damage(here, BLOCK, 0, -1, "the segment's head is damaged")
            self.previous = None
            self.expected = self.expected or 0
            return
        if self.expected is None:
            self.expected = head.first
        for gap in self._missing(head.first, here, 0, "the segments before this one are gone"):
            yield replace(gap, dropped=True)
        if head.previous:  # 0: its broker began with a checkpoint behind the last commit, and did not read that
            yield from self._chain(head.previous, here)
        self.previous = head.previous

    def _missing(self, upto: int | None, position: Position, size: int, what: str) -> Iterator[Damage]:
        if upto is not None and self.expected is not None and upto > self.expected:
            yield Damage(position, size, self.expected, upto - 1, what)
            self.expected, self.previous = upto, None

    def _chain(self, previous: int, position: Position) -> Iterator[Damage]:
        if self.previous is not None and self.previous != previous:
            what = "this does not follow what stands before it; was a file put here from elsewhere?"
            yield Damage(position, 0, 0, -1, what, foreign=True)

    # --- one batch ----------------------------------------------------------------------------------------------------------

    def _whole(self, offset: int) -> tuple[BatchHead, list[tuple[int, int]]] | None:
        """Head and table of the batch at `offset`, where both are whole and it is not from before."""
        head = layout.parse_batch_head(self._file.read(offset, BATCH_HEAD.size))
        if head is None or offset + head.bytes > self._file.size or head.first < (self.expected or 0):
            return None
        rows = layout.parse_table(self._file.read(offset, head.bytes), head)
        return None if rows is None else (head, rows)

    def _batch(self, offset: int) -> Generator[Entry | Damage, None, int | None]:
        """Reads what is at `offset`; returns where to go on, None at the end."""
        found = self._whole(offset)
        if found is None:
            return (yield from self._resync(offset))
        head, rows = found
        items = list(self._entries(offset, head, rows))
        bad = [item for item in items if isinstance(item, Damage)]
        if bad and self._may_be_torn(offset + head.bytes, head.first + head.count):
            self.torn_bytes = self._file.size - offset
            return None
        here = Position(self._index, offset)
        yield from self._missing(head.first, here, 0, "a commit before this one is gone")
        yield from self._chain(head.previous, here)
        yield from items
        self.expected, self.previous = head.first + head.count, head.checksum
        return offset + head.bytes

    def _entries(self, offset: int, head: BatchHead, rows: list[tuple[int, int]]) -> Iterator[Entry | Damage]:
        data, at = self._file.read(offset, head.bytes), BATCH_HEAD.size
        for place, (size, _) in enumerate(rows):
            position, number = Position(self._index, offset + at), head.first + place
            found = layout.parse_entry(data[at : at + size], position, number, want_frames=self._want_frames)
            if found is None:
                yield Damage(position, size, number, number, "the entry is damaged")
            else:
                yield from self._frames_damage(found[0], size)
                yield found[0]
            at += size

    def _may_be_torn(self, behind: int, upto: int) -> bool:
        """Nothing was answered for that lies at the very end.

        A commit begins only when the one before it is durable.
        """
        return self._is_last and upto > self._sure and self._next_batch(behind) is None

    # --- damage -------------------------------------------------------------------------------------------------------------

    def _next_batch(self, offset: int) -> tuple[int, BatchHead] | None:
        """The first whole batch from `offset` on."""
        for at in range(layout.padded(offset), self._file.size, BLOCK):
            found = self._whole(at) if bytes(self._file.read(at, 4)) == layout.BATCH_MAGIC else None
            if found is not None:
                return at, found[0]
        return None

    def _resync(self, offset: int) -> Generator[Entry | Damage, None, int | None]:
        """There is no whole batch at `offset`: the end, or damage up to the next one."""
        following = self._next_batch(offset + BLOCK)
        if following is not None:
            yield from self._salvage(offset, following[0], following[1].first)
            return following[0]
        used = self._used_bytes(offset)
        if self._is_last and (self.expected or 0) >= self._sure:
            self.torn_bytes = used
        elif used or self.expected != self._until:
            yield from self._salvage(offset, self._file.size, self._sure if self._is_last else self._until)
            self.end = Position(self._index, self._file.size)
        return None

    def _used_bytes(self, offset: int) -> int:
        """From `offset` to the last byte that is not zero."""
        for at in range(self._file.size - 1 & ~(WINDOW_BYTES - 1), -1, -WINDOW_BYTES):
            start = max(at, offset)
            kept = bytes(self._file.read(start, min(at + WINDOW_BYTES, self._file.size) - start)).rstrip(b"\0")
            if kept:
                return start + len(kept) - offset
            if at <= offset:
                break
        return 0

    def _salvage(self, offset: int, end: int, upto: int | None) -> Iterator[Entry | Damage]:
        """Entries in a region whose batch head or table is damaged, found by their magic.

        The rest, up to number `upto`, is lost.
        """
        data, here, at, lost = bytes(self._file.read(offset, end - offset)), Position(self._index, offset), 0, False
        what = "damaged" if data.strip(b"\0") else "zeroes, where entries were"
        while (at := data.find(ENTRY_MAGIC, at)) >= 0:
            found = layout.parse_entry(memoryview(data)[at:], Position(self._index, offset + at), want_frames=self._want_frames)
            if found is None or found[0].number < (self.expected or 0):
                at += 1
                continue
            for missing in self._missing(found[0].number, here, end - offset, what):
                yield missing
                lost = True
            yield from self._frames_damage(found[0], found[1])
            yield found[0]
            self.expected, self.previous, at = found[0].number + 1, None, at + found[1]
        for missing in self._missing(upto, here, end - offset, what):
            yield missing
            lost = True
        if not lost:
            yield Damage(here, end - offset, 0, -1, "the head of a commit is damaged, its entries are whole")
        self.previous = None

    def _frames_damage(self, entry: Entry, size: int) -> Iterator[Damage]:
        if not entry.frames_whole:
            yield Damage(
                entry.position, size, entry.number, entry.number - 1, f"the frames of entry {entry.number} are damaged, its event is whole"
            )
