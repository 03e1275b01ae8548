"""What the state remembers for people alone: how long who waited on a queue, and what became of records that nobody could process.

Plain Structs, part of the fold. No rule decides by them, but for the retry of a dead letter.
"""

from __future__ import annotations

from msgspec import Struct, field

from schemas.header import Header


class Waiting(Struct, kw_only=True):
    """The two kinds of waiting at a queue beside the time in it. Counted between events; `core/waiting.py` says what each means."""

    starved_s: float = 0.0
    """Seconds, summed over consumers, in which one had room and found nothing that it may take."""
    blocked_s: float = 0.0
    """Seconds in which a record waited and nobody could take it."""
    free: dict[str, None] = field(default_factory=dict)
    """Consumers that have room at this moment."""
    blocked: bool = False
    since: float = 0.0
    """Up to when both are counted."""
    step: int = 0
    """samples: the step that was in the trainer's hands at the last look."""


class Attempt(Struct, kw_only=True):
    """One delivery that came to nothing."""

    queue: str
    client: str
    attempt: int
    """Of the ticket; 0 for a record without one."""
    at: float
    cause: str
    """Why the lease ended, or what the stage said."""


class DeadLetter(Struct, kw_only=True):
    """A record that was given up, with what happened to it. Its frames stay in the arena under `message`."""

    id: int
    message: int
    queue: str
    header: Header
    at: float
    cause: str
    task_index: int | None = None
    """Of its ticket's group."""
    version: int | None = None
    """The version that its ticket was pinned to."""
    history: list[Attempt] = field(default_factory=list)
    retried: str = ""
    """What a retry led to; empty before one."""
