"""`tidemill dead`: dead letters as lines, and one letter with its record. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from broker.diagnosis.scene import seconds
from schemas.codec import Frame, decode_record
from schemas.errors import WireError
from schemas.messages import DeadLetters
from schemas.records import RECORDS

SHOWN_NUMBERS = 24
"""Of an array; the rest is counted."""


def list_lines(found: DeadLetters) -> list[str]:
    """One line a letter, oldest first."""
    lines = [_line(letter) for letter in found.letters]
    if found.dropped:
        lines.insert(0, f"({found.dropped} older ones had to make room)")
    return lines or ["no dead letters"]


def _line(letter: dict[str, Any]) -> str:
    header = letter["header"]
    whose = str(header["record"])
    if "ticket" in header:
        whose = f"ticket {header['ticket']}, {header.get('purpose', '')} task {letter['task_index']}"
    again = "  (tried again)" if letter["retried"] else ""
    return f"{letter['id']:>5}  {seconds(letter['age_s']):>6} ago  {letter['queue']:<9} {whose}: {letter['cause']}{again}"


def show_lines(letter: dict[str, Any], frames: list[Frame]) -> list[str]:
    """A letter in full: header, history, record."""
    lines = [_line(letter).strip(), "", "header:"]
    lines += [f"  {name}: {value}" for name, value in letter["header"].items() if name != "frames"]
    lines += ["", "what happened:"]
    lines += [f"  {_attempt(each)}" for each in letter["history"]]
    lines += [f"  tried again: {letter['retried']}"] if letter["retried"] else []
    return [*lines, "", "record:", *_record_lines(letter["header"]["record"], frames)]


def _attempt(each: dict[str, Any]) -> str:
    return f"{seconds(each['age_s'])} ago, {each['client']}, {each['queue']}, attempt {each['attempt']}: {each['cause']}"


def _record_lines(tag: str, frames: list[Frame]) -> list[str]:
    if not frames:
        return ["  its frames are gone"]
    try:
        record = decode_record(RECORDS[tag], frames)
    except (KeyError, WireError) as error:
        return [f"  cannot be read: {error}"]
    return [f"  {name}: {_value(getattr(record, name))}" for name in record.__struct_fields__]


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        more = f" … ({value.size} in all)" if value.size > SHOWN_NUMBERS else ""
        return f"{value[:SHOWN_NUMBERS].tolist()}{more}"
    return str(msgspec.to_builtins(value))
