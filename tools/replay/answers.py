"""What a stage said, in a form that two runs of it can be compared in, and by what its parts are found again. Pure.

An answer is named by its cause, not by its content: the leases it answers for, the nth word in a session, the step, the version. So a
stage that answers otherwise than it did is compared with what it did, and not waited for.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins

from schemas import messages as wire
from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.records import RECORDS

Key = tuple[Any, ...]

TIMES = frozenset({"queue_seconds", "generate_seconds", "environment_seconds", "policy_seconds", "seconds", "busy_seconds"})
"""How long something took is never compared; neither are metrics under `time/`."""
DERIVED = frozenset({"frames", "digest", "fingerprint", "pipeline"})
"""Header fields that follow from the record (times among it) or from the config."""
NUMBERING = frozenset({"epoch", "seq"})


class Answer(Struct, frozen=True):
    """One message of a stage. `content`: plain values and vectors, times left out."""

    key: Key
    kind: str
    content: dict[str, Any]


class Keys:
    """Names the answers of one life of one stage, in the order in which it gives them."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._session_of: dict[int, tuple[int, int]] = {}
        self._counts: Counter[Key] = Counter()

    def given(self, order: wire.BrokerMessage) -> None:
        """A ticket's lease tells whose a failure is."""
        if isinstance(order, wire.Deliver) and self._role is Role.ENV:
            self._session_of[order.lease] = (order.header.ticket or 0, order.header.attempt or 0)

    def of(self, message: wire.ClientMessage) -> Key:
        """To be called once an answer."""
        match message:
            case wire.Commit():
                return self._of_commit(message)
            case wire.Voted():
                return self._counted("voted", message.step)
            case wire.CheckpointSaved():
                return self._counted("checkpoint", message.step)
            case wire.Receipt() | wire.InstallFailed():
                return self._counted("install", message.number)
            case wire.GrantReleased():
                return self._counted("released", message.grant)
            case wire.Credit():
                return self._counted("credit", message.queue)
        return self._counted(type(message).__name__)

    def _of_commit(self, commit: wire.Commit) -> Key:
        leases = (*commit.acks, *(failure.lease for failure in commit.fails))
        if self._role is Role.ENV:
            put = commit.puts[0] if commit.puts else None
            session = (put.ticket or 0, put.attempt or 0) if put is not None else self._session_of.get(min(leases), (0, 0))
            return self._counted("session", *session)
        if not leases:
            return self._counted("version", commit.puts[0].newest_version)
        return ("lease", min(leases))

    def _counted(self, *key: Any) -> Key:
        self._counts[key] += 1
        return (*key, self._counts[key])


def content_of(message: wire.ClientMessage, frames: tuple[Frame, ...]) -> dict[str, Any]:
    """Raises WireError where a frame is not what its header says."""
    if not isinstance(message, wire.Commit):
        return _without_times({name: value for name, value in to_builtins(message).items() if name not in NUMBERING})
    puts, at = [], 0
    for header in message.puts:
        parts = frames[at : at + len(header.frames)]
        at += len(header.frames)
        record = decode_record(RECORDS[header.record], parts)
        plain = {name: getattr(record, name) for name in record.__struct_fields__}
        fields = {name: value for name, value in to_builtins(header).items() if name not in DERIVED}
        puts.append({"header": fields, "record": _without_times({name: _plain(name, value) for name, value in plain.items()})})
    fails = [to_builtins(failure) for failure in message.fails]
    return {"acks": sorted(message.acks), "fails": fails, "puts": puts}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if name == "location":
        return PurePath(value).name  # where a version lies differs from folder to folder
    return to_builtins(value)


def _without_times(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in fields.items() if name not in TIMES}
    if isinstance(kept.get("metrics"), dict):
        kept["metrics"] = {name: value for name, value in kept["metrics"].items() if not name.startswith("time/")}
    return kept


def jsonable(value: Any) -> Any:
    """Vectors as lists; the rest as it is."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    return value
