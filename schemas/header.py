"""The header of a record: all that the broker ever reads of one.

A record on a queue is `header | body | array frames`. The header (at most 512 bytes of msgpack) holds what queues,
ledger and policies need; the body (msgpack) and the arrays (raw bytes) pass through the broker unread. Fields without a
meaning for a record are absent.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

HEADER_BYTES_MAX = 512
"""A header is read for every record by the one broker process: it stays small whatever the record carries."""

Purpose = Literal["train", "eval"]


class FrameInfo(Struct, frozen=True, array_like=True, gc=False):
    """One frame after the header: its dtype ("msgpack" for the body), shape and length in bytes."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


class Header(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who and what a record is. Ids are integers; token counts are tokens; versions are trainer versions."""

    record: str
    """Tag of the record's type, such as `turn`."""
    fingerprint: int
    """Fingerprint of that type in `schema.lock` (u32)."""
    pipeline: str
    queue: str
    frames: tuple[FrameInfo, ...]
    ticket: int | None = None
    group: int | None = None
    member: int | None = None
    attempt: int | None = None
    """The session is (ticket, attempt); the first attempt is 1."""
    turn: int | None = None
    purpose: Purpose | None = None
    context_tokens: int | None = None
    """Tokens of the session before this record's own."""
    new_tokens: int | None = None
    """Tokens that this record adds (turn, action) or holds in all (episode, sample)."""
    trainable_tokens: int | None = None
    """Tokens under the loss mask."""
    oldest_version: int | None = None
    newest_version: int | None = None
    reward: float | None = None
    truncated: bool | None = None
    priority: int | None = None
    lineage: int | None = None
    """version, install: which of the trainer's histories; `newest_version` is the version's number."""
    weights: str | None = None
    """version, install: digest of the weights (xxh3-64 hex)."""
    digest: int | None = None
    """xxh3-64 over the frames, in order."""
