"""The index's rows: what can be known of a record without its frames, at a fixed width, so that a filter looks at columns.

Pure. One row a record: every put of every commit, and every ticket, which the broker itself makes. Headers are read leniently: a field
that an older or newer schema lacks is absent, one that it adds is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import msgspec
import numpy as np
from msgspec import Struct

ROW = np.dtype([
    ("number", "<u8"), ("at", "<f8"), ("segment", "<u4"), ("offset", "<u8"), ("part", "<u2"), ("first_frame", "<u4"), ("queue", "u1"),
    ("flags", "u1"), ("client", "<u2"), ("ticket", "<i8"), ("group", "<i8"), ("member", "<i4"), ("attempt", "<i4"), ("turn", "<i4"),
    ("oldest", "<i4"), ("newest", "<i4"), ("reward", "<f8"), ("bytes", "<u4"), ("tokens", "<i4"), ("took", "<f4"),
])  # fmt: skip
"""Absent integers are -1, an absent reward or time is NaN. `took`: seconds for which its maker held what it was made from; known from
what the broker did, not from the record."""
pack_row = struct.Struct("<QdIQHIBBHqqiiiiidIif").pack
JUDGED = np.dtype([("number", "<u8"), ("took", "<f4"), ("flags", "u1")])
"""Of an entry, what the broker made of it."""
pack_judged = struct.Struct("<QfB").pack
REFUSED, EVAL, TRUNCATED, DAMAGED, MADE, UNSURE = 1, 2, 4, 8, 16, 32
"""Flags: the broker did not take it; of an evaluation; cut off; its frames are damaged; made by the broker; not known whether taken."""


QUEUES_MOST, CLIENTS_MOST = 255, 65_535
"""Names that a row's columns can tell apart."""


NAN = float("nan")


class LeanFrame(Struct, gc=False, array_like=True):
    """A frame's description."""

    dtype: Any = None
    shape: Any = None
    bytes: int = 0


class LeanHeader(Struct, gc=False):
    """What the index wants of a header; of any schema. Absent is what a row holds for absent."""

    queue: str = "?"
    frames: list[LeanFrame] = []
    ticket: int = -1
    group: int = -1
    member: int = -1
    attempt: int = -1
    turn: int = -1
    purpose: str = ""
    new_tokens: int = -1
    oldest_version: int = -1
    newest_version: int = -1
    reward: float = NAN
    truncated: bool = False


class LeanMessage(Struct, gc=False):
    """What the index wants of a client's message."""

    type: str = ""
    puts: list[LeanHeader] = []
    ready: bool = False
    """hello: its sender can work from here on."""


class LeanEvent(Struct, gc=False):
    """What the index wants of an event."""

    type: str = ""
    sender: str = ""
    message: LeanMessage | None = None


_decode = msgspec.msgpack.Decoder(LeanEvent).decode
NOTHING = LeanEvent()


def read_event(data: bytes) -> LeanEvent:
    """An event of any schema; an empty one where nothing in it can be made out."""
    try:
        return _decode(data)
    except msgspec.MsgspecError:
        return _by_force(data)


def _by_force(data: bytes) -> LeanEvent:
    """Field by field, those that have the wanted type."""
    try:
        raw = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return NOTHING
    if not isinstance(raw, dict):
        return NOTHING
    message = raw.get("message")
    puts = message.get("puts", ()) if isinstance(message, dict) else ()
    headers = [_fitting(LeanHeader, put) for put in puts if isinstance(put, dict)] if isinstance(puts, list | tuple) else []
    kind = str(message.get("type", "")) if isinstance(message, dict) else ""
    return LeanEvent(str(raw.get("type", "")), str(raw.get("sender", "")), LeanMessage(kind, headers))


def _fitting(kind: type[LeanHeader], raw: dict[Any, Any]) -> LeanHeader:
    fitting: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in raw:
            try:
                fitting[field.name] = msgspec.convert(raw[field.name], field.type)
            except msgspec.ValidationError:
                continue
    return kind(**fitting)


class Names:
    """Names behind small numbers, in the order of their first use."""

    def __init__(self, names: list[str], most: int) -> None:
        self.names = names
        self._most = most
        self._numbers = {name: number for number, name in enumerate(names)}

    def number(self, name: str) -> int:
        """Its number; the last one is shared where there are too many."""
        found = self._numbers.get(name)
        if found is None:
            if len(self.names) >= self._most:
                return self._most - 1
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found


def row_of(header: LeanHeader, number: int, at: float, where: tuple[int, int], part: int, first_frame: int, queue: int, flags: int,
           client: int, size: int) -> bytes:  # fmt: skip
    """One row's bytes. Raises struct.error where a number fits no column."""
    if header.purpose == "eval":
        flags |= EVAL
    if header.truncated:
        flags |= TRUNCATED
    return pack_row(
        number, at, *where, part, first_frame, queue, flags, client, header.ticket, header.group, header.member, header.attempt,
        header.turn, header.oldest_version, header.newest_version, header.reward, size, header.new_tokens, NAN,
    )  # fmt: skip


def placed_frames(headers: Sequence[LeanHeader]) -> Iterator[tuple[int, int, LeanHeader]]:
    """Each header with the index of its first frame and the bytes of all its frames."""
    start = 0
    for header in headers:
        size = 0
        for frame in header.frames:
            size += frame.bytes
        yield start, size, header
        start += len(header.frames)
