"""What a stage is to the one service loop: a few callbacks, all called from one thread.

| call | when | what the stage does |
|---|---|---|
| `start` | once, after the first welcome | reads its config, loads the heavy things |
| `hello` | after `start`, and after each reconnect | says what the second hello should carry: windows, resume_step, installed |
| `deliver` | a leased record arrived | keeps it; answers later with `link.commit` |
| `order` | anything else that the broker orders | obeys |
| `work` | again and again | one bounded piece of work; True if more is ready at once |
| `stats`, `waiting` | once a second | numbers and a reason for the heartbeat |
| `drained` | after `drain` was ordered | True once nothing is held |
| `close` | at the end | frees what it owns |

`work` must return within about a second: the loop heartbeats between calls, and a stage that stays away too long is
taken for hung. A wait that ends by something other than a broker message (another thread, a file) wakes the loop
through `wake_fd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from msgspec import Struct

from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.header import Header
from schemas.messages import BrokerMessage, ClientMessage, Failure, Welcome
from schemas.records import Record

RecordT = TypeVar("RecordT", bound=Record)


class Delivery(Struct, frozen=True, kw_only=True):
    """One leased record. `context`: token vectors (int32) that precede a turn's own and that this replica does not hold."""

    lease: int
    header: Header
    frames: tuple[Frame, ...]
    delivery: int = 1
    held_tokens: int = 0
    context: tuple[np.ndarray, ...] = ()

    def record(self, kind: type[RecordT]) -> RecordT:
        """The decoded record; raises WireError where it is not a `kind`."""
        return decode_record(kind, self.frames)


class Put(Struct, frozen=True, kw_only=True):
    """A record on its way to a queue; `fields` are header fields beside those that the codec fills in."""

    queue: str
    record: Record
    fields: dict[str, Any]


class Link(Protocol):
    """A stage's way to the broker. Never blocks; what it sends is kept until the broker has it."""

    @property
    def run_directory(self) -> str:
        """Where this run keeps its versions, checkpoints and logs."""

    def commit(self, *, acks: Sequence[int] = (), puts: Sequence[Put] = (), fails: Sequence[Failure] = ()) -> None:
        """One unit of work, all or nothing."""

    def send(self, message: ClientMessage) -> None:
        """Voted, CheckpointSaved, Receipt, InstallFailed, Credit, GrantAsked, GrantReleased or ProcessExited."""


class Ready(Struct, frozen=True, kw_only=True):
    """What a stage's ready hello carries."""

    windows: dict[str, int] = {}
    resume_step: int | None = None
    step_in_hand: int | None = None
    sessions: tuple[tuple[int, int], ...] = ()
    installed: int | None = None
    user_code: dict[str, str] = {}
    grants: tuple[int, ...] = ()
    slots: tuple[str, ...] = ()
    running: dict[str, int] = {}
    blobs: str = ""
    """Where this process serves blobs, as others reach it."""
    directory: str = ""
    roles: tuple[str, ...] = ()


class Stage(Protocol):
    """See the module's table."""

    role: Role

    def start(self, welcome: Welcome, link: Link) -> None: ...
    def hello(self) -> Ready: ...
    def deliver(self, delivery: Delivery) -> None: ...
    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None: ...
    def work(self) -> bool: ...
    def stats(self) -> dict[str, float]: ...
    def waiting(self) -> str: ...
    def drained(self) -> bool: ...
    def close(self) -> None: ...
    def wake_fd(self) -> int | None:
        """A file descriptor that becomes readable when `work` should be called; None where only messages wake it."""
