"""The journal: every event with its time and frames, in order, durable in groups.

Owns `<run>/journal/`: segments `00000000.log`, `00000001.log`, ... of entries, and a lock that keeps a second broker out. Promises: what
`commit` returned for is on disk (`fdatasync`, and the directory for a new segment); reading gives exactly the entries appended, in order,
cut at the first incomplete entry of the last segment. It does not know what an event means.

An entry is `head | event | frame sizes (u32 each) | frames`; the head holds a magic, the entry's number, its time, its sizes and an xxh3-64
over all of the entry but itself, seeded with the entry's number so that a stale block cannot pass for a new one.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import xxhash
from msgspec import Struct

from schemas.codec import Frame
from schemas.errors import JournalError

HEAD = struct.Struct("<4sIQdIIQ")
"""magic, frame count, number, time (s), event bytes, body bytes after the head, xxh3-64."""
MAGIC = b"TIDE"
SEGMENT_BYTES = 256 << 20
"""A new segment from here on: small enough to drop whole by quota, large enough that few files hold a run."""
DIGEST_BYTES = 8
ENTRY_BYTES_MAX = 1 << 30


class Entry(Struct, frozen=True):
    """One event as it was appended; `frames` are views of the segment."""

    number: int
    now: float
    event: bytes
    frames: tuple[Frame, ...]


class Journal:
    """Append, commit, read back."""

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._buffer: list[Frame] = []
        self._buffered = 0
        self.next_number = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self._file = -1
        self._size = 0

    def _take_lock(self) -> int:
        lock = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise JournalError(f"another broker is at work on {self._directory}; end it or choose another run name") from error
        return lock

    def segments(self) -> list[Path]:
        """Segment files, oldest first."""
        return sorted(self._directory.glob("[0-9]*.log"))

    def read(self) -> Iterator[Entry]:
        """All entries so far, then opens the journal for appending behind them. To be exhausted before the first append."""
        segments = self.segments()
        for index, path in enumerate(segments):
            data = path.read_bytes()
            good = yield from self._entries(data, path, is_last=index == len(segments) - 1)
            if index == len(segments) - 1:
                self._reopen(path, good)
        if not segments:
            self._open_segment(0)

    def _entries(self, data: bytes, path: Path, *, is_last: bool) -> Generator[Entry, None, int]:
        offset = 0
        while offset < len(data):
            entry, size = _read_entry(data, offset, self.next_number)
            if entry is None:
                if not is_last or _begins_later(data, offset, self.next_number):
                    raise JournalError(f"{path}: entry {self.next_number} at byte {offset} is damaged or missing; nothing past it can be replayed")
                break
            self.next_number += 1
            offset += size
            yield entry
        return offset

    def _reopen(self, path: Path, good: int) -> None:
        """Cuts the unfinished tail of the last segment: nothing of it was ever acknowledged."""
        self._file = os.open(path, os.O_WRONLY)
        self.cut_bytes = os.fstat(self._file).st_size - good
        os.ftruncate(self._file, good)
        os.lseek(self._file, good, os.SEEK_SET)
        os.fdatasync(self._file)
        self._size = good

    def _open_segment(self, index: int) -> None:
        path = self._directory / f"{index:08d}.log"
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self._size = 0
        directory = os.open(self._directory, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def append(self, event: bytes, now: float, frames: Sequence[Frame] = ()) -> int:
        """Adds an entry to the group that the next `commit` makes durable. Returns its number."""
        number = self.next_number
        sizes = struct.pack(f"<{len(frames)}I", *(len(frame) for frame in frames))
        body = len(event) + len(sizes) + sum(len(frame) for frame in frames)
        head = HEAD.pack(MAGIC, len(frames), number, now, len(event), body, 0)[:-DIGEST_BYTES]
        digest = xxhash.xxh3_64(seed=number)
        for part in (head, event, sizes, *frames):
            digest.update(part)
        self._buffer += [head, struct.pack("<Q", digest.intdigest()), event, sizes, *frames]
        self._buffered += HEAD.size + body
        self.next_number += 1
        return number

    def commit(self) -> int:
        """Makes all appended entries durable; returns how many bytes that were. Raises OSError where the disk refuses: nothing counts then."""
        written = self._buffered
        if not written:
            return 0
        if self._size and self._size + written > self._segment_bytes:
            os.close(self._file)
            self._open_segment(len(self.segments()))
        _write_all(self._file, b"".join(self._buffer))
        os.fdatasync(self._file)
        self._size += written
        self._buffer, self._buffered = [], 0
        return written

    @property
    def has_uncommitted(self) -> bool:
        """Entries wait for a commit."""
        return self._buffered > 0

    def close(self) -> None:
        """Commits what is left and lets the lock go."""
        if self._file >= 0:
            self.commit()
            os.close(self._file)
            self._file = -1
        os.close(self._lock)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _read_entry(data: bytes, offset: int, number: int) -> tuple[Entry | None, int]:
    """The entry at `offset`, or None where there is none that is whole and of this number."""
    if offset + HEAD.size > len(data):
        return None, 0
    magic, count, stored, now, event_bytes, body, digest = HEAD.unpack_from(data, offset)
    start, end = offset + HEAD.size, offset + HEAD.size + body
    if magic != MAGIC or stored != number or body > ENTRY_BYTES_MAX or end > len(data) or event_bytes + 4 * count > body:
        return None, 0
    view = memoryview(data)[start:end]
    found = xxhash.xxh3_64(data[offset : start - DIGEST_BYTES], seed=number)
    found.update(view)
    if found.intdigest() != digest:
        return None, 0
    sizes = struct.unpack_from(f"<{count}I", view, event_bytes)
    if event_bytes + 4 * count + sum(sizes) != body:
        return None, 0
    return Entry(stored, now, bytes(view[:event_bytes]), _cut(view[event_bytes + 4 * count :], sizes)), end - offset


def _begins_later(data: bytes, offset: int, number: int) -> bool:
    """A segment that begins with a whole entry of a later number: one before it is missing."""
    if offset or len(data) < HEAD.size:
        return False
    stored = HEAD.unpack_from(data)[2]
    return bool(stored > number) and _read_entry(data, 0, stored)[0] is not None


def _cut(view: memoryview, sizes: Sequence[int]) -> tuple[Frame, ...]:
    frames, offset = [], 0
    for size in sizes:
        frames.append(bytes(view[offset : offset + size]))
        offset += size
    return tuple(frames)
