"""Files of changed bytes: how one safetensors file is made from another of the same layout.

    "TIDEDLT1" · u32 length, head · (u32 length, block)* · u32 0        lengths little-endian, head and blocks msgpack

Promises: memory is a few blocks; a delta applied to its base gives a file that carries the result's digest, or a BlobError: what it is
applied to, and whether it is whole, need not be known before. Layouts that differ (shape, name, order, number format) have no delta.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from schemas.errors import BlobError
from stages.blobs.core.coding import Plane, apply, difference
from stages.blobs.outline import file_outline

MAGIC = b"TIDEDLT1"
BLOCK_BYTES = 4 << 20
"""Of the file that is made; a whole number of any tensor's items."""
PART_BYTES_MAX = 3 * BLOCK_BYTES
"""Of one block as it is written: every byte changed, and its planes' heads."""
THREADS_MAX = 8
"""A core makes deltas of 100 to 280 MB a second: eight keep up with a link of 10 Gbit."""
HEADER_BYTES_MAX = 100 << 20
"""Safetensors' own bound on its header."""
ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


ItemT = TypeVar("ItemT")
FoundT = TypeVar("FoundT")


class Head(Struct, frozen=True):
    """What the file is for. Digests are those of `outline.py`."""

    base: str
    result: str
    bytes: int


class Block(Struct, frozen=True, array_like=True):
    """Bytes [start, start + size) of the file, as numbers of `item_bytes`."""

    start: int
    size: int
    item_bytes: int
    planes: list[Plane]


class Region(Struct, frozen=True):
    """Bytes of a file that are numbers of one size."""

    start: int
    end: int
    item_bytes: int


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(Head)
_blocks = msgspec.msgpack.Decoder(Block)


def write_delta(base: Path, base_digest: str, result: Path, result_digest: str, target: Path) -> int | None:
    """Writes how `result` is made from `base`; returns the bytes written, None where there is no delta or it would not be smaller.

    Raises BlobError where a file is no safetensors file, OSError.
    """
    with base.open("rb") as old, result.open("rb") as new:
        regions = regions_of(old)
        size = os.fstat(new.fileno()).st_size
        if regions != regions_of(new) or os.fstat(old.fileno()).st_size != size or not _same_header(old, new):
            return None
        with target.open("wb") as out:
            written = out.write(MAGIC) + _put(out, _encoder.encode(Head(base_digest, result_digest, size)))
            for part in _differences(old, new, regions):
                written += _put(out, part) if part else 0
                if written >= size:
                    return None
            return written + out.write(bytes(4))


def _put(out: BinaryIO, part: bytes) -> int:
    return out.write(len(part).to_bytes(4, "little") + part)


def _differences(old: BinaryIO, new: BinaryIO, regions: list[Region]) -> Iterator[bytes]:
    """Blocks as they are written, in order; empty for one in which nothing changed."""

    def part(piece: Region) -> bytes:
        size = piece.end - piece.start
        before, after = (np.frombuffer(_read(file.fileno(), size, piece.start), np.uint8) for file in (old, new))
        planes = difference(before, after, piece.item_bytes)
        return _encoder.encode(Block(piece.start, size, piece.item_bytes, planes)) if planes else b""

    return in_order(part, _pieces(regions))


def _pieces(regions: list[Region]) -> Iterator[Region]:
    for region in regions:
        for start in range(region.start, region.end, BLOCK_BYTES):
            yield Region(start, min(start + BLOCK_BYTES, region.end), region.item_bytes)


def in_order(work: Callable[[ItemT], FoundT], items: Iterable[ItemT]) -> Iterator[FoundT]:
    """`work` of each, in their order, on the cores that this process may use; few are taken ahead, so memory stays bounded."""
    threads = min(THREADS_MAX, len(os.sched_getaffinity(0)))
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="delta") as pool:
        waiting: deque[Future[FoundT]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _read(descriptor: int, size: int, offset: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    if len(data) != size:
        raise BlobError(f"a file of weights ended at {offset + len(data)}, in the middle of a tensor")
    return data


def _same_header(old: BinaryIO, new: BinaryIO) -> bool:
    size = 8 + int.from_bytes(_read(old.fileno(), 8, 0), "little")
    return _read(old.fileno(), size, 0) == _read(new.fileno(), size, 0)


def regions_of(file: BinaryIO) -> list[Region]:
    """The file's tensors, neighbours with numbers of one size together. Raises BlobError where it is no safetensors file."""
    total = os.fstat(file.fileno()).st_size
    size = int.from_bytes(_read(file.fileno(), 8, 0), "little") if total >= 8 else HEADER_BYTES_MAX + 1
    if size > min(HEADER_BYTES_MAX, total - 8):
        raise BlobError(f"{file.name} is no safetensors file, or is cut short")
    try:
        header = msgspec.json.decode(_read(file.fileno(), size, 8), type=dict[str, dict[str, Any]])
        header.pop("__metadata__", None)
        tensors = sorted((*entry["data_offsets"], ITEM_BYTES.get(entry["dtype"], 1)) for entry in header.values())
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, UnicodeDecodeError, RecursionError) as error:
        raise BlobError(f"{file.name} has no readable safetensors header: {error}") from None
    regions: list[Region] = []
    for start, end, item_bytes in tensors:
        if not 0 <= start <= end <= total - 8 - size or (end - start) % item_bytes:
            raise BlobError(f"{file.name}: a tensor at bytes [{start}, {end}) does not fit the file")
        _add(regions, Region(8 + size + start, 8 + size + end, item_bytes))
    return regions


def _add(regions: list[Region], region: Region) -> None:
    last = regions[-1] if regions else None
    if last is not None and last.end == region.start and last.item_bytes == region.item_bytes:
        regions[-1] = Region(last.start, region.end, last.item_bytes)
    else:
        regions.append(region)


def apply_delta(base: Path, delta: Path, descriptor: int, result_digest: str) -> None:
    """Makes the result in the file open at `descriptor`, cut to its size. Raises BlobError where it does not come out as it should."""
    with base.open("rb") as old, delta.open("rb") as parts:
        head = _head(parts)
        if os.fstat(old.fileno()).st_size != head.bytes or head.result != result_digest:
            raise BlobError("a delta belongs to other files than these")
        _copy(old.fileno(), descriptor, head.bytes)
        for _ in in_order(lambda part: _apply_block(descriptor, part, head.bytes), _parts(parts)):
            pass
    found = file_outline(descriptor).digest
    if found != result_digest:
        raise BlobError(f"a delta made a file that hashes to {found}, not to {result_digest}: its base is another one, or it was damaged")


def _head(parts: BinaryIO) -> Head:
    if parts.read(len(MAGIC)) != MAGIC:
        raise BlobError("not a delta of weights, or of another format")
    part = _part(parts)
    try:
        return _heads.decode(part or b"")
    except msgspec.MsgspecError as error:
        raise BlobError(f"a delta has no readable head: {error}") from None


def _parts(parts: BinaryIO) -> Iterator[bytes]:
    while (part := _part(parts)) is not None:
        yield part


def _part(parts: BinaryIO) -> bytes | None:
    """None at the end."""
    head = parts.read(4)
    size = int.from_bytes(head, "little")
    if len(head) < 4 or size > PART_BYTES_MAX:
        raise BlobError("a delta is cut short, or damaged")
    if size == 0:
        return None
    part = parts.read(size)
    if len(part) < size:
        raise BlobError("a delta is cut short")
    return part


def _apply_block(descriptor: int, part: bytes, total: int) -> None:
    try:
        block = _blocks.decode(part)
    except msgspec.MsgspecError as error:
        raise BlobError(f"a delta has an unreadable block: {error}") from None
    if block.start < 0 or not 0 < block.size <= min(BLOCK_BYTES, total - block.start):
        raise BlobError(f"a delta names bytes [{block.start}, +{block.size}) of a file of {total}")
    data = np.frombuffer(bytearray(_read(descriptor, block.size, block.start)), np.uint8)
    apply(data, block.planes, block.item_bytes)
    _write_all(descriptor, data.data, block.start)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)


def _copy(source: int, target: int, size: int) -> None:
    os.ftruncate(target, size)
    done = 0
    while done < size:
        data = os.pread(source, min(BLOCK_BYTES, size - done), done)
        if not data:
            raise BlobError("the base of a delta is cut short")
        _write_all(target, memoryview(data), done)
        done += len(data)
