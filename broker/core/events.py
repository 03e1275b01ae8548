"""What can happen to the broker's core: a closed list. Each is journaled with the time it was handed in."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from schemas.edges import Role
from schemas.header import Header
from schemas.messages import ClientMessage, Commit
from schemas.records import Json


class Started(Struct, frozen=True, kw_only=True, tag="started"):
    """First event of a run: the resolved config and where the run lives."""

    config: dict[str, Json]
    run_directory: str


class Restarted(Struct, frozen=True, kw_only=True, tag="restarted"):
    """The broker came back on an existing journal: all clients must say hello again."""


class Received(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="received", gc=False):
    """A client's message. `sender` is its routing id, `name/incarnation`."""

    sender: str
    message: ClientMessage
    key: str = ""
    """Name of the key behind the sender; empty where keys are not asked for."""
    roles: tuple[Role, ...] | None = None
    """What that key may be; None where keys are not asked for."""


class Revoked(Struct, frozen=True, kw_only=True, tag="revoked"):
    """A key was taken off the allow-list, or its roles were changed: whoever came in by it has to go."""

    key: str


class Malformed(Struct, frozen=True, kw_only=True, tag="malformed"):
    """A commit whose frames are not what its headers say; it is refused and its number is spent."""

    sender: str
    epoch: int
    seq: int
    detail: str


class Tick(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tick"):
    """Time passed: deadlines, silence, restarts."""

    late_s: float = 0.0
    """How long after its time it comes; long where broker or machine stood still."""


class DiskFull(Struct, frozen=True, kw_only=True, tag="disk_full"):
    """The journal cannot grow."""


class DiskOk(Struct, frozen=True, kw_only=True, tag="disk_ok"):
    """It can again."""


class Damaged(Struct, frozen=True, kw_only=True, tag="damaged"):
    """Recovery found the frames of these messages damaged on disk: nobody can be given them any more."""

    messages: tuple[int, ...]


Event = Started | Restarted | Received | Malformed | Tick | DiskFull | DiskOk | Damaged | Revoked

encode_event = msgspec.msgpack.Encoder().encode
decode_event = msgspec.msgpack.Decoder(Event).decode


def puts_of(event: Event) -> tuple[Header, ...]:
    """Headers of the records that an event carries."""
    if isinstance(event, Received) and isinstance(event.message, Commit):
        return event.message.puts
    return ()
