"""Changed bytes of one block of numbers, written down: pure, numpy and zlib only.

    numbers, old and new, as integers ─► new - old ─► zigzag (0 -1 1 -2 2 ... become 0 1 2 3 4 ...) ─► byte planes (all lowest bytes, all
    next ones ...) ─► for each plane that is not all 0: where it is not, and what it is there

A training step moves most numbers by a few of their smallest steps, so the higher planes are nearly empty: a plane is the unit. Where it
is not 0 is written as one byte a change (the distance from the last one; 255: go on by 255), or as a bit a number where changes are dense,
or not at all where nearly all are. zlib's quickest level goes over it where that makes it smaller. ../README.md has the sizes behind this.

Promises: `apply` gives back exactly the new bytes for the old ones, and refuses what does not fit with a BlobError: lengths, positions and
inflated sizes are checked, so a damaged delta cannot ask for more memory than its block.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from msgspec import Struct

from schemas.errors import BlobError

GAPS, BITMAP, ALL = 0, 1, 2
JUMP = 255
LEVEL = 1


class Plane(Struct, frozen=True, array_like=True, gc=False):
    """One byte plane that is not all 0. `data`: positions, then the bytes there; `deflated`: under zlib."""

    plane: int
    form: int
    changes: int
    data: bytes
    deflated: bool = False


SIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<i1"), 2: np.dtype("<i2"), 4: np.dtype("<i4"), 8: np.dtype("<i8")}
UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
"""By bytes of a number. They wrap around, and so does every step below: any bytes are as good as numbers that mean something."""


def difference(old: np.ndarray, new: np.ndarray, item_bytes: int) -> list[Plane]:
    """What turns `old` into `new`, both uint8 and a whole number of items of `item_bytes`. Empty where they are equal."""
    if old.size != new.size or old.size % item_bytes:
        raise BlobError(f"blocks of {old.size} and {new.size} bytes are no numbers of {item_bytes} bytes each")
    signed = SIGNED[item_bytes]
    moved = new.view(signed) - old.view(signed)
    zigzag = ((moved << 1) ^ (moved >> (8 * item_bytes - 1))).view(np.uint8).reshape(-1, item_bytes)
    planes = []
    for index in range(item_bytes):
        plane = np.ascontiguousarray(zigzag[:, index])
        if plane.any():
            planes.append(_written(index, plane))
    return planes


def _written(index: int, plane: np.ndarray) -> Plane:
    positions = np.flatnonzero(plane)
    count = int(positions.size)
    gaps = _gaps(positions) if count * 8 < plane.size else None
    if gaps is not None and gaps.size <= plane.size // 8:
        form, data = GAPS, gaps.tobytes() + plane[positions].tobytes()
    elif count + plane.size // 8 < plane.size:
        form, data = BITMAP, np.packbits(plane != 0).tobytes() + plane[positions].tobytes()
    else:
        form, data = ALL, plane.tobytes()
    deflated = zlib.compress(data, LEVEL)
    if len(deflated) < len(data):
        return Plane(index, form, count, deflated, True)
    return Plane(index, form, count, data)


def _gaps(positions: np.ndarray) -> np.ndarray:
    """Each distance from the position before (from -1 for the first), less one, as bytes: as many 255 as fit, then the rest."""
    distances = np.diff(positions, prepend=-1) - 1
    jumps = distances // JUMP
    written = np.full(int(positions.size + jumps.sum()), JUMP, np.uint8)
    written[np.cumsum(jumps + 1) - 1] = distances % JUMP
    return written


def _positions(gaps: np.ndarray) -> np.ndarray:
    """The inverse: where the changes are."""
    ends: np.ndarray = np.cumsum(gaps, dtype=np.int64)[gaps != JUMP]
    ends += np.arange(ends.size, dtype=np.int64)
    return ends


def apply(target: np.ndarray, planes: list[Plane], item_bytes: int) -> None:
    """Turns the old bytes in `target` (uint8, changed in place) into the new ones. Raises BlobError where a plane does not fit."""
    if item_bytes not in SIGNED or target.size % item_bytes:
        raise BlobError(f"a block of {target.size} bytes is no numbers of {item_bytes} bytes each")
    zigzag = np.zeros((target.size // item_bytes, item_bytes), np.uint8)
    for plane in planes:
        if not 0 <= plane.plane < item_bytes:
            raise BlobError(f"a delta names byte {plane.plane} of numbers of {item_bytes} bytes")
        _read_plane(zigzag[:, plane.plane], plane)
    signed = SIGNED[item_bytes]
    found = zigzag.reshape(-1).view(UNSIGNED[item_bytes])
    negative = np.negative((found & 1).view(signed))
    numbers = target.view(signed)
    numbers += (found >> 1).view(signed) ^ negative


def _read_plane(there: np.ndarray, plane: Plane) -> None:
    size = there.size
    if not 0 < plane.changes <= size:
        raise BlobError(f"a delta counts {plane.changes} changes among {size} numbers")
    data = np.frombuffer(_inflated(plane.data, 2 * size) if plane.deflated else plane.data, np.uint8)
    if plane.form == ALL and data.size == size:
        there[:] = data
    elif plane.form == BITMAP and data.size == -(-size // 8) + plane.changes:
        where = np.unpackbits(data[: -(-size // 8)], count=size).view(bool)
        _place(there, np.flatnonzero(where), data[-plane.changes :])
    elif plane.form == GAPS and data.size > plane.changes:
        _place(there, _positions(data[: -plane.changes]), data[-plane.changes :])
    else:
        raise BlobError(f"a delta's plane of form {plane.form} has {data.size} bytes for {plane.changes} changes among {size} numbers")


def _place(there: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    if positions.size != values.size or (positions.size and positions[-1] >= there.size):
        raise BlobError(f"a delta's {positions.size} positions do not fit {values.size} values among {there.size} numbers")
    there[positions] = values


def _inflated(data: bytes, most: int) -> bytes:
    try:
        inflater = zlib.decompressobj()
        found = inflater.decompress(data, most)
    except zlib.error as error:
        raise BlobError(f"a delta cannot be inflated: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise BlobError("a delta inflates to more than its block can need, or is cut short")
    return found
