"""A broker whose every word a test says itself: one ROUTER socket, no core."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import zmq

from schemas.codec import Frame, decode_client_message, encode_message, encode_record, make_header
from schemas.messages import BrokerMessage, ClientMessage, Deliver, Heartbeat, Hello, Welcome
from schemas.records import Record
from tests.skeleton.waiting import PATIENCE_S, NeverCameTrueError

MessageT = TypeVar("MessageT")


class ScriptedBroker:
    """Speaks with one client. `heard` holds all it said, heartbeats left out."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client = b""
        self.dead_s = 5.0
        self.heartbeat_s = 0.05
        self.heard: list[ClientMessage] = []
        self.heartbeats: list[Heartbeat] = []
        self._seen = 0
        self._open()

    def _open(self) -> None:
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.bind(self.endpoint)

    def close(self) -> None:
        self._router.close()
        self._context.term()

    def restart(self) -> None:
        """Another broker at the same endpoint: whatever was on its way is lost."""
        self.close()
        self._open()

    def say(self, message: BrokerMessage, frames: Sequence[Frame] = ()) -> None:
        self._router.send_multipart([self.client, encode_message(message), *frames])

    def listen(self, for_s: float = 0.01) -> None:
        """Takes what arrived."""
        while self._router.poll(int(for_s * 1000)):
            self.client, first, *_ = self._router.recv_multipart()
            message = decode_client_message(first)
            if isinstance(message, Heartbeat):
                self.heartbeats.append(message)
            else:
                self.heard.append(message)
                return

    def next(self, kind: type[MessageT]) -> MessageT:
        """The next message of `kind`, others passed over."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while self._seen < len(self.heard):
                message = self.heard[self._seen]
                self._seen += 1
                if isinstance(message, kind):
                    return message
            if time.monotonic() > deadline:
                raise NeverCameTrueError(f"no {kind.__name__}; heard {self.heard}")
            self.listen()

    def welcome(self, *, next_seq: int = 1, stale: tuple[int, ...] = (), epoch: int = 1) -> Hello:
        """Answers the next hello; returns it."""
        hello = self.next(Hello)
        config = {"pipeline": {"name": "skeleton"}, "broker": {"dead_s": self.dead_s}}
        beat = self.heartbeat_s
        self.say(Welcome(epoch=epoch, next_seq=next_seq, config=config, run_directory="/nowhere", stale=stale, heartbeat_s=beat))
        return hello

    def deliver(self, lease: int, record: Record, queue: str, **fields: object) -> None:
        frames = encode_record(record)
        self.say(Deliver(lease=lease, header=make_header(record, frames, pipeline="skeleton", queue=queue, **fields)), frames)


@contextmanager
def a_scripted_broker() -> Iterator[ScriptedBroker]:
    folder = tempfile.mkdtemp(prefix="skeleton-", dir="/tmp")
    broker = ScriptedBroker(f"ipc://{folder}/broker")
    try:
        yield broker
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)
