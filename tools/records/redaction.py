"""Redaction: what a model or a user said is blanked, and everything keeps its shape. Pure.

Blanked: token ids (also those kept by top-k and top-p), tasks, outcomes, reasons and last lines of processes. Kept: lengths, masks,
log-probs, versions, rewards, times, ids, the config. Digests are made anew, so that what was blanked still checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash
from msgspec.structs import replace

from broker.core.events import Event, Malformed, Received
from broker.core.state import State
from schemas.codec import decode_record, encode_record, frame_infos, frames_digest
from schemas.header import Header
from schemas.messages import Bye, ClientMessage, Commit, InstallFailed, ProcessExited, Voted
from schemas.records import RECORDS, Record, Turn

BLANKED = ("tokens", "kept_ids", "task", "outcome", "context_digest", "reasons", "last_lines")
TOKEN_ARRAYS = ("tokens", "kept_ids")
TEXTS = ("task", "outcome")


def blank(value: Any) -> Any:
    """The same shape and keys, without content."""
    if isinstance(value, str):
        return "x" * len(value)
    if isinstance(value, dict):
        return {key: blank(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [blank(inner) for inner in value]
    return type(value)() if isinstance(value, bool | int | float | bytes) else None


def redact_record(header: Header, frames: Sequence[bytes]) -> tuple[Header, list[bytes]]:
    """Header and frames of the blanked record. Raises WireError where they are not of this schema, KeyError for an unknown record."""
    record = decode_record(RECORDS[header.record], frames)
    changed: dict[str, Any] = {name: np.zeros_like(getattr(record, name)) for name in TOKEN_ARRAYS if name in record.arrays}
    changed |= {name: blank(getattr(record, name)) for name in TEXTS if hasattr(record, name)}
    if isinstance(record, Turn):
        changed["context_digest"] = xxhash.xxh3_64_intdigest(bytes(4 * (header.context_tokens or 0)))
    blanked: Record = replace(record, **changed)
    written = [bytes(frame) for frame in encode_record(blanked)]
    return replace(header, frames=frame_infos(blanked, written), digest=frames_digest(written)), written


def redact_event(event: Event, frames: Sequence[bytes]) -> tuple[Event, list[bytes]]:
    """`frames` are those of the event's puts, or none. Raises as `redact_record`."""
    if isinstance(event, Malformed):
        return replace(event, detail=blank(event.detail)), []
    if not isinstance(event, Received):
        return event, []
    if isinstance(event.message, Commit):
        commit, written = _commit(event.message, frames)
        return replace(event, message=commit), written
    return replace(event, message=_message(event.message)), []


def _commit(commit: Commit, frames: Sequence[bytes]) -> tuple[Commit, list[bytes]]:
    fails = tuple(replace(failure, reason=blank(failure.reason)) for failure in commit.fails)
    if not frames:  # a digest of short text gives it away
        return replace(commit, fails=fails, puts=tuple(replace(header, digest=None) for header in commit.puts)), []
    puts, written, start = [], [], 0
    for header in commit.puts:
        put, blanked = redact_record(header, frames[start : start + len(header.frames)])
        puts.append(put)
        written += blanked
        start += len(header.frames)
    return replace(commit, fails=fails, puts=tuple(puts)), written


def _message(message: ClientMessage) -> ClientMessage:
    if isinstance(message, Voted | InstallFailed | Bye):
        return replace(message, reason=blank(message.reason))
    if isinstance(message, ProcessExited):
        return replace(message, last_lines=tuple(blank(message.last_lines)))
    return message


def redact_state(state: State) -> State:
    """A copy without reasons, last lines and digests of what is not there."""
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    histories = [*(ticket.history for ticket in copy.tickets.values()), *(message.history for message in copy.messages.values()),
                 *(letter.history for letter in copy.dead.values())]  # fmt: skip
    for attempt in (attempt for history in histories for attempt in history):
        attempt.cause = blank(attempt.cause)
    for message in copy.messages.values():
        message.header = replace(message.header, digest=None)
    for letter in copy.dead.values():
        letter.header = replace(letter.header, digest=None)
        letter.cause, letter.retried = blank(letter.cause), blank(letter.retried)
    if copy.failure is not None:
        copy.failure = replace(copy.failure, reason=blank(copy.failure.reason), last_lines=tuple(blank(copy.failure.last_lines)))
    return copy
