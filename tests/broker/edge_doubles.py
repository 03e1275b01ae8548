"""Doubles for the edges of the driver: a transport that plays a script, and a journal that notes the order of things."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from broker.core.events import Started
from broker.driver import Driver
from broker.journal import Journal
from broker.reports import Reports
from schemas.codec import Frame, decode_broker_message, encode_message, encode_record, make_header
from schemas.edges import Role
from schemas.lock import schema_fingerprint
from schemas.messages import PROTOCOL_VERSION, BrokerMessage, ClientMessage, Commit, Hello
from schemas.records import Record

PIPELINE = "skeleton"


class ScriptedTransport:
    """Hands the driver what is put into `inbox`, and keeps what it sends."""

    endpoint = "script://"

    def __init__(self, story: list[str]) -> None:
        self.inbox: list[tuple[bytes, list[bytes]]] = []
        self.sent: list[tuple[bytes, list[Frame]]] = []
        self._story = story

    def watch(self, descriptor: int) -> None:
        """Nobody waits here."""

    def receive(self, timeout_s: float) -> list[tuple[bytes, list[bytes]]]:
        taken, self.inbox = self.inbox, []
        return taken

    def send(self, identity: bytes, frames: Sequence[Frame]) -> bool:
        self._story.append("send")
        self.sent.append((identity, list(frames)))
        return True

    def holder(self, identity: bytes) -> None:
        return None

    def revoked(self) -> list[str]:
        return []

    def take_choked(self) -> list[bytes]:
        return []

    def close(self) -> None:
        self._story.append("close")


class NotingJournal(Journal):
    """Writes into `story` when an entry was appended and when all were made durable; nothing counts as durable before `commit`."""

    def __init__(self, directory: Path, story: list[str]) -> None:
        super().__init__(directory)
        self._story = story
        self._told = -1
        self.wanted = False

    def append(self, event: bytes, now: float, frames: Sequence[Frame] = ()) -> int:
        self._story.append("append")
        return super().append(event, now, frames)

    def want(self, delay_s: float = 0.0) -> None:
        self.wanted = True
        super().want(delay_s)

    @property
    def durable(self) -> int:
        return self._told

    def commit(self) -> int:
        super().commit()
        self._told, self.wanted = super().durable, False
        self._story.append("durable")
        return self._told


class Desk:
    """A driver without sockets or time: `say` gives it messages and one turn of its loop, and returns what it answered."""

    def __init__(self, run: Path, config: dict[str, Any]) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.story: list[str] = []
        self.transport = ScriptedTransport(self.story)
        self.journal = NotingJournal(run / "journal", self.story)
        self.reports = Reports(run)
        started = Started(config=config, run_directory=str(run))
        self.driver = Driver(self.journal, self.transport, self.reports, started)  # type: ignore[arg-type]

    def give(self, identity: bytes, *messages: Sequence[bytes]) -> list[tuple[BrokerMessage, list[Frame]]]:
        """Raw frames from `identity`; returns what that identity was answered."""
        before = len(self.transport.sent)
        self.transport.inbox = [(identity, [bytes(frame) for frame in frames]) for frames in messages]
        self.driver.turn()
        if self.journal.wanted:
            self.driver.settle()
        answers = [frames for to, frames in self.transport.sent[before:] if to == identity]
        return [(decode_broker_message(frames[0]), frames[1:]) for frames in answers]

    def say(self, name: str, *messages: ClientMessage, frames: Iterable[Frame] = ()) -> list[BrokerMessage]:
        """Messages from a client; returns what it was answered."""
        parts = [[encode_message(message), *frames] for message in messages]
        return [message for message, _ in self.give(routing_id(name), *parts)]

    def hello(self, role: Role, name: str, **fields: Any) -> list[BrokerMessage]:
        return self.say(name, a_hello(role, name, **fields))

    def close(self) -> None:
        self.driver.settle()
        self.driver.close()
        self.reports.close()


def routing_id(name: str) -> bytes:
    return f"{name}/i1".encode()


def a_hello(role: Role, name: str, **fields: Any) -> Hello:
    """A ready hello of incarnation `i1`."""
    base = {"protocol": PROTOCOL_VERSION, "schema": schema_fingerprint(), "incarnation": "i1", "pipeline": PIPELINE, "ready": True}
    return Hello(role=role, name=name, **{**base, **fields})


def a_put(record: Record, queue: str, **fields: Any) -> tuple[Commit, list[Frame]]:
    """A commit of one put, epoch 1, and its frames."""
    frames = encode_record(record)
    seq = fields.pop("seq", 1)
    acks = fields.pop("acks", ())
    header = make_header(record, frames, pipeline=PIPELINE, queue=queue, **fields)
    return Commit(epoch=1, seq=seq, acks=acks, puts=(header,)), frames
