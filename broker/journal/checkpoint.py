"""Checkpoints of the state: what a fold of all entries below `number` gives, so that a start need not fold them again.

Derived, and never missed: without them the journal is folded from its first entry. A checkpoint is written only
once every entry that it covers is durable, whole or not at all, and the last two are kept. Records are not copied
into it: it says where their frames lie in the journal, but for those that the broker made itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash
from msgspec import Struct

from broker.journal.files import Files, write_whole
from broker.journal.format import Position
from broker.journal_files import checkpoint_paths

MAGIC = b"TIDECKPT"
HEAD = struct.Struct("<8sIQQ")
"""magic, format, bytes of the body, xxh3-64 of the body."""
FORMAT = 1
KEPT = 2


class Place(Struct, frozen=True, array_like=True):
    """Frames of one record: `count` from `first` on, of the entry at `segment`, `offset`."""

    segment: int
    offset: int
    first: int
    count: int

    @property
    def position(self) -> Position:
        """Of the entry."""
        return Position(self.segment, self.offset)


class Contents(Struct, frozen=True):
    """What the arena holds, by message: places in the journal, and frames that stand in no entry."""

    placed: dict[int, Place]
    inline: dict[int, tuple[bytes, ...]]


class Checkpoint(Struct, frozen=True, kw_only=True):
    """`state` is the msgpack of the broker's state.

    `position` where the batch begins that entry `number` is to be looked for from.
    """

    number: int
    now: float
    position: Position
    state: bytes
    arena: Contents

    @property
    def segments(self) -> frozenset[int]:
        """Segments below `position` that hold frames it needs."""
        return frozenset(place.segment for place in self.arena.placed.values())


def path_of(directory: Path, number: int) -> Path:
    """The file of a checkpoint."""
    return directory / f"{number:016d}.checkpoint"


def paths(directory: Path) -> list[Path]:
    """Newest first."""
    return checkpoint_paths(directory)


def write(files: Files, directory: Path, checkpoint: Checkpoint) -> None:
    """Makes it durable. Raises OSError."""
    body = msgspec.msgpack.encode(checkpoint)
    head = HEAD.pack(MAGIC, FORMAT, len(body), xxhash.xxh3_64_intdigest(body))
    write_whole(files, path_of(directory, checkpoint.number), head + body)


def read(path: Path) -> Checkpoint | None:
    """None where the file is not whole or of another format."""
    data = path.read_bytes()
    if len(data) < HEAD.size:
        return None
    magic, version, size, checksum = HEAD.unpack_from(data)
    body = memoryview(data)[HEAD.size :]
    if magic != MAGIC or version != FORMAT or len(body) != size or xxhash.xxh3_64_intdigest(body) != checksum:
        return None
    return msgspec.msgpack.decode(body, type=Checkpoint)


def valid(directory: Path) -> Iterator[Checkpoint]:
    """Newest first; those that are not whole are passed over."""
    for path in paths(directory):
        found = read(path)
        if found is not None:
            yield found


def prune(files: Files, directory: Path) -> None:
    """Removes all but the last two."""
    for path in paths(directory)[KEPT:]:
        files.unlink(path)
