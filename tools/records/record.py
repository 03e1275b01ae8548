"""One record in full, of any schema: read by `msgpack` alone, then held against the schemas of this version.

Promises: nothing is left out and nothing is guessed: a field that this version does not know is shown and named as unknown, one that it
expects is named as missing, frames that nobody explains are shown as what their description says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
from msgspec import Struct

from broker.journal import Entry, Position
from broker.journal.reading import entry_at
from schemas.codec import frames_digest
from schemas.errors import JournalError
from schemas.header import Header
from schemas.lock import fingerprints
from schemas.records import RECORDS, Record


class Opened(Struct, kw_only=True):
    """A record. `arrays` by field name; `remarks` say what is not as this version would write it."""

    number: int
    part: int
    at: float
    sender: str
    header: dict[str, Any]
    body: dict[str, Any]
    arrays: dict[str, np.ndarray]
    unknown: list[str]
    """Fields, as `header.x` or `body.x`, that this version does not know."""
    absent: list[str]
    """Fields of the body that this version has and the record has not."""
    remarks: list[str]

    @property
    def tag(self) -> str:
        return str(self.header.get("record", "?"))


def open_record(journal: Path, row: np.ndarray) -> Opened:
    """The record behind a row of the index. Raises JournalError where it is gone or is no record."""
    position = Position(int(row["segment"]), int(row["offset"]))
    return opened(entry_at(journal, position), int(row["part"]))


def opened(entry: Entry, part: int) -> Opened:
    """Put number `part` of a commit. Raises JournalError where the entry holds no such put."""
    event = _unpacked(entry.event)
    message = event.get("message")
    puts = message.get("puts", ()) if isinstance(message, dict) else ()
    if part >= len(puts):
        raise JournalError(f"entry {entry.number} holds {len(puts)} records; there is no record {part} in it")
    described = [len(put.get("frames", ())) for put in puts]
    start = sum(described[:part])
    header = dict(puts[part])
    frames = entry.frames[start : start + described[part]]
    remarks = _frame_remarks(entry, header, frames)
    body = _unpacked(frames[0]) if frames else {}
    arrays = _arrays(header, body, frames)
    return Opened(number=entry.number, part=part, at=entry.now, sender=str(event.get("sender", "")), header=header, body=body,
                  arrays=arrays, unknown=_unknown(header, body), absent=_absent(header, body),
                  remarks=[*remarks, *_schema_remarks(header)])  # fmt: skip


def made(header: Header, record: Record, number: int, part: int, at: float) -> Opened:
    """A record that the broker itself made; it stands in no entry, and follows from the fold."""
    body = {name: getattr(record, name) for name in record.__struct_fields__ if name not in record.arrays}
    shown = {name: value for name, value in msgspec.to_builtins(header).items() if value is not None}
    return Opened(number=number, part=part, at=at, sender="broker", header=shown, body=body, unknown=[], absent=[],
                  arrays={name: getattr(record, name) for name in record.arrays}, remarks=["made by the broker"])  # fmt: skip


def _unpacked(data: bytes) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise JournalError(f"not msgpack: {error}") from error
    return found if isinstance(found, dict) else {"": found}


def _frame_remarks(entry: Entry, header: dict[str, Any], frames: tuple[bytes, ...]) -> list[str]:
    if not entry.frames_whole:
        return ["its frames are damaged on disk; only the header is left"]
    if not frames:
        return ["its frames are not in this file: they were left out when it was cut"]
    if header.get("digest") not in (None, frames_digest(frames)):
        return ["its frames do not match the digest in its header"]
    return []


def _schema_remarks(header: dict[str, Any]) -> list[str]:
    tag, known = str(header.get("record")), fingerprints()
    if tag not in known:
        return [f"records named {tag!r} are unknown to this version"]
    if header.get("fingerprint") != known[tag]:
        return [f"written under another schema of {tag!r} (fingerprint {header.get('fingerprint')}, this version's is {known[tag]})"]
    return []


def _arrays(header: dict[str, Any], body: dict[str, Any], frames: tuple[bytes, ...]) -> dict[str, np.ndarray]:
    """Arrays by the field that points at them; the field leaves the body. Frames that nothing points at are `frame N`."""
    kind = RECORDS.get(str(header.get("record")))
    dtypes = [str(info[0]) for info in header.get("frames", ())]
    arrays: dict[str, np.ndarray] = {}
    unclaimed = set(range(len(frames) - 1))
    for name in kind.arrays if kind is not None else ():
        place = body.get(name)
        if isinstance(place, int) and place in unclaimed:
            arrays[name] = _array(frames[place + 1], dtypes[place + 1])
            unclaimed.discard(place)
            del body[name]
    for place in sorted(unclaimed):
        arrays[f"frame {place}"] = _array(frames[place + 1], dtypes[place + 1])
    return arrays


def _array(frame: bytes, dtype: str) -> np.ndarray:
    try:
        return np.frombuffer(frame, np.dtype(dtype))
    except (TypeError, ValueError):
        return np.frombuffer(frame, np.uint8)


def _unknown(header: dict[str, Any], body: dict[str, Any]) -> list[str]:
    kind = RECORDS.get(str(header.get("record")))
    ours = {field.name for field in msgspec.structs.fields(Header)}
    fields = {field.name for field in msgspec.structs.fields(kind)} if kind is not None else set()
    return [f"header.{name}" for name in header if name not in ours] + [
        f"body.{name}" for name in body if name != "type" and name not in fields
    ]


def _absent(header: dict[str, Any], body: dict[str, Any]) -> list[str]:
    kind = RECORDS.get(str(header.get("record")))
    if kind is None or not body:
        return []
    wanted = [field.name for field in msgspec.structs.fields(kind) if field.name not in kind.arrays and field.required]
    return [f"body.{name}" for name in wanted if name not in body]


def as_json(record: Opened) -> dict[str, Any]:
    """Everything, with arrays as lists."""
    return {
        "entry": record.number, "part": record.part, "at": record.at, "sender": record.sender, "header": record.header, "body": record.body,
        "arrays": {name: array.tolist() for name, array in record.arrays.items()}, "unknown_fields": record.unknown,
        "missing_fields": record.absent, "remarks": record.remarks,
    }  # fmt: skip
