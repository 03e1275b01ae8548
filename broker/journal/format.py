"""The journal's bytes, and nothing else: pure encoding and parsing of segments, batches and entries.

A segment is blocks of 4 KiB: one block of head, then batches, each on a block of its own, so that a committed block
is never rewritten.

    segment | head: magic, format, index, first number, epoch, previous batch's checksum | batch | batch | ... | zeroes
    batch   | head: magic, count, first number, entry bytes, epoch, previous batch's checksum, checksum | entries | table | zeroes
    entry   | magic, digest, number, now, event bytes, frame count, frame bytes, frames' digest | event | frame sizes | frames
    table   | entry bytes (u32), entry digest (u64), for each entry

Every digest is an xxh3-64 seeded with a number, so that a stale block cannot pass for a new one. An entry's digest
covers its head from the number on, its event and its frames' digest: damage to frames alone leaves the event
readable. The batch's checksum covers head and table, so by the digests all of the batch; with the previous batch's
checksum in it, the batches are a chain, and a lost middle is seen.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from schemas.codec import Frame

BLOCK = 4096
"""Sector size of what we write to, and the unit that a power cut keeps or loses whole."""
FORMAT = 1
SEGMENT_MAGIC = b"TIDESEGM"
BATCH_MAGIC = b"TIDB"
ENTRY_MAGIC = b"TIDE"
SEGMENT_HEAD = struct.Struct("<8sIIQQQQ")
"""magic, format, index, first number, epoch, previous checksum, checksum."""
BATCH_HEAD = struct.Struct("<4sIQQQQQ")
"""magic, count, first number, bytes of all entries, epoch, previous checksum, checksum."""
ENTRY_HEAD = struct.Struct("<4sQQdIIIQ")
"""magic, digest, number, now (s), event bytes, frame count, frame bytes, frames' digest."""
_ENTRY_SEAL, _ENTRY_SEALED = struct.Struct("<4sQ"), struct.Struct("<QdIIIQ")
"""Its two parts: what is sealed by the digest, and the digest."""
ROW = struct.Struct("<IQ")
ENTRY_SEALED_FROM = 12
"""The digest of an entry covers it from its number on, up to its frames."""
ENTRY_BYTES_MAX = 1 << 30
COUNT_MAX = 1 << 20
_CHECKSUM = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
NO_FRAMES_DIGEST = 0


class Position(Struct, frozen=True, order=True):
    """Where something begins: segment index, and byte in its file."""

    segment: int
    offset: int


class Entry(Struct, frozen=True):
    """One event as it was appended. `frames_whole` is False where the frames were damaged and are left out."""

    number: int
    now: float
    event: bytes
    frames: tuple[bytes, ...]
    position: Position
    frames_whole: bool = True


class SegmentHead(Struct, frozen=True):
    """First block of a segment."""

    index: int
    first: int
    epoch: int
    previous: int


class BatchHead(Struct, frozen=True):
    """What a commit wrote; `bytes` with head, table and padding."""

    first: int
    count: int
    entry_bytes: int
    epoch: int
    previous: int
    checksum: int

    @property
    def bytes(self) -> int:
        """Whole blocks."""
        return batch_bytes(self.entry_bytes, self.count)

    @property
    def table(self) -> int:
        """Where the table begins, from the batch's start."""
        return BATCH_HEAD.size + self.entry_bytes


def padded(size: int) -> int:
    """`size` in whole blocks."""
    return (size + BLOCK - 1) & ~(BLOCK - 1)


def batch_bytes(entry_bytes: int, count: int) -> int:
    """Bytes on disk of a batch."""
    return padded(BATCH_HEAD.size + entry_bytes + ROW.size * count)


def digest(data: Frame, seed: int) -> int:
    """xxh3-64."""
    value: int = xxh3_64_intdigest(data, seed)
    return value


# --- segment -------------------------------------------------------------------------------------------------------------------


def encode_segment_head(head: SegmentHead) -> bytes:
    """One block."""
    body = SEGMENT_HEAD.pack(SEGMENT_MAGIC, FORMAT, head.index, head.first, head.epoch, head.previous, 0)
    seal = digest(body[: -_CHECKSUM.size], head.index)
    return (body[: -_CHECKSUM.size] + _CHECKSUM.pack(seal)).ljust(BLOCK, b"\0")


def parse_segment_head(data: Frame) -> SegmentHead | None:
    """None where `data` does not begin with a whole segment head of this format."""
    if len(data) < SEGMENT_HEAD.size:
        return None
    magic, version, index, first, epoch, previous, checksum = SEGMENT_HEAD.unpack_from(data)
    covered = data[: SEGMENT_HEAD.size - _CHECKSUM.size]
    if magic != SEGMENT_MAGIC or version != FORMAT or digest(covered, index) != checksum:
        return None
    return SegmentHead(index, first, epoch, previous)


# --- batch ---------------------------------------------------------------------------------------------------------------------


def seal_batch(buffer: memoryview, first: int, entry_bytes: int, rows: Sequence[tuple[int, int]], epoch: int, previous: int) -> BatchHead:
    """Writes table, head and padding around the entries that lie in `buffer` behind the room for a head.

    The buffer must be large enough.
    """
    at = BATCH_HEAD.size + entry_bytes
    table = b"".join(ROW.pack(*row) for row in rows)
    buffer[at : at + len(table)] = table
    at += len(table)
    end = padded(at)
    buffer[at:end] = bytes(end - at)
    BATCH_HEAD.pack_into(buffer, 0, BATCH_MAGIC, len(rows), first, entry_bytes, epoch, previous, 0)
    checksum = _batch_checksum(buffer, first, BATCH_HEAD.size + entry_bytes, at)
    _CHECKSUM.pack_into(buffer, BATCH_HEAD.size - _CHECKSUM.size, checksum)
    return BatchHead(first, len(rows), entry_bytes, epoch, previous, checksum)


def _batch_checksum(data: Frame, first: int, table: int, end: int) -> int:
    return digest(bytes(data[: BATCH_HEAD.size - _CHECKSUM.size]) + bytes(data[table:end]), first)


def parse_batch_head(data: Frame) -> BatchHead | None:
    """The head at the start of `data`, its checksum not yet checked; None where there is none that makes sense."""
    if len(data) < BATCH_HEAD.size:
        return None
    magic, count, first, entry_bytes, epoch, previous, checksum = BATCH_HEAD.unpack_from(data)
    if magic != BATCH_MAGIC or not 0 < count <= COUNT_MAX or entry_bytes < count * ENTRY_HEAD.size or entry_bytes > ENTRY_BYTES_MAX * 4:
        return None
    return BatchHead(first, count, entry_bytes, epoch, previous, checksum)


def parse_table(data: Frame, head: BatchHead) -> list[tuple[int, int]] | None:
    """(bytes, digest) of each entry of the batch `data`; None where head or table are damaged or cut off."""
    end = head.table + ROW.size * head.count
    if end > len(data) or _batch_checksum(data, head.first, head.table, end) != head.checksum:
        return None
    return list(ROW.iter_unpack(data[head.table : end]))


# --- entry ---------------------------------------------------------------------------------------------------------------------


def entry_bytes(event: Frame, frames: Sequence[Frame]) -> int:
    """Bytes of an entry in its batch."""
    return ENTRY_HEAD.size + len(event) + 4 * len(frames) + sum(map(len, frames))


def put_entry(buffer: memoryview, at: int, number: int, now: float, event: bytes, frames: Sequence[Frame]) -> tuple[int, int]:
    """Writes an entry into `buffer` at `at`; returns its row of the table. The buffer must be large enough."""
    # In one piece and by hand: this runs for every event, and each call would cost as much as what it does.
    count, frames_at = len(frames), at + ENTRY_HEAD.size + len(event) + 4 * len(frames)
    end, sizes, frames_digest = frames_at, b"", NO_FRAMES_DIGEST
    if count == 1:
        body = frames[0]
        end = frames_at + len(body)
        sizes, frames_digest = _SIZE.pack(len(body)), xxh3_64_intdigest(body, number)
        buffer[frames_at:end] = body
    elif count:
        sizes = struct.pack(f"<{count}I", *map(len, frames))
        for frame in frames:
            start, end = end, end + len(frame)
            buffer[start:end] = frame
        frames_digest = xxh3_64_intdigest(buffer[frames_at:end], number)
    sealed = _ENTRY_SEALED.pack(number, now, len(event), count, end - frames_at, frames_digest) + event + sizes
    seal = xxh3_64_intdigest(sealed, number)
    buffer[at:frames_at] = _ENTRY_SEAL.pack(ENTRY_MAGIC, seal) + sealed
    return end - at, seal


def parse_entry(data: Frame, position: Position, number: int | None = None, *, want_frames: bool = True) -> tuple[Entry, int] | None:
    """The entry at the start of `data` and its bytes.

    None where head or event are not whole, or it is not entry `number`.
    """
    if len(data) < ENTRY_HEAD.size:
        return None
    magic, seal, stored, now, event_size, count, frame_bytes, frames_digest = ENTRY_HEAD.unpack_from(data)
    frames_at = ENTRY_HEAD.size + event_size + 4 * count
    if magic != ENTRY_MAGIC or frames_at > len(data) or number not in (None, stored):
        return None
    if digest(data[ENTRY_SEALED_FROM:frames_at], stored) != seal:
        return None
    event = bytes(data[ENTRY_HEAD.size : ENTRY_HEAD.size + event_size])
    sizes = struct.unpack_from(f"<{count}I", data, frames_at - 4 * count)
    body = data[frames_at : frames_at + frame_bytes]
    whole = len(body) == frame_bytes and (not count or digest(body, stored) == frames_digest)
    frames = cut(body, sizes) if whole and want_frames else ()
    return Entry(stored, now, event, frames, position, frames_whole=whole), frames_at + frame_bytes


def entry_size(data: Frame) -> int | None:
    """Bytes of the entry whose head is at the start of `data`, unchecked; None where no head is there."""
    if len(data) < ENTRY_HEAD.size or bytes(data[:4]) != ENTRY_MAGIC:
        return None
    _, _, _, _, event_size, count, frame_bytes, _ = ENTRY_HEAD.unpack_from(data)
    return int(ENTRY_HEAD.size + event_size + 4 * count + frame_bytes)


def cut(body: Frame, sizes: Sequence[int]) -> tuple[bytes, ...]:
    """The frames that lie behind one another in `body`."""
    frames, offset = [], 0
    for size in sizes:
        frames.append(bytes(body[offset : offset + size]))
        offset += size
    return tuple(frames)
