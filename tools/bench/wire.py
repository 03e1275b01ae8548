"""A lean client of the broker's protocol: hello, numbered commits, go-back-N, heartbeats; no reconnecting.

It speaks exactly what `broker.client.Client` speaks, but many of them share one context and one thread, so that a thousand connections fit
into one process. A run in which the broker is restarted is not its business.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Sequence

import zmq

from broker.handshake import arm
from broker.keys import ClientKeys
from broker.parts import receive_parts, send_parts
from schemas.codec import Frame, each_delivery, encode_message
from schemas.edges import Role
from schemas.errors import BrokerRefusedError
from schemas.header import Header
from schemas.lock import schema_fingerprint
from schemas.messages import (
    PROTOCOL_VERSION,
    BrokerMessage,
    Commit,
    Committed,
    Deliveries,
    Failure,
    Heartbeat,
    Hello,
    Refuse,
    ResendFrom,
    Welcome,
)  # fmt: skip

BEAT_SECONDS = 1.0
DRAIN_MESSAGES = 256
DELIVERIES = 16
ZERO_COPY_BYTES = 65_536
Received = tuple[BrokerMessage, list[Frame]]


class Link:
    """One connection."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, role: Role, name: str, keys: ClientKeys | None = None
    ) -> None:
        self.name, self.role = name, role
        self._incarnation = secrets.token_hex(8)
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, f"{name}/{self._incarnation}".encode())
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self.socket.setsockopt(option, 0)
        arm(self.socket, endpoint, keys)
        self.socket.connect(endpoint)
        self._epoch = 0
        self._next_seq = 1
        self._unanswered: deque[tuple[int, list[Frame]]] = deque()
        self._beat_at = 0.0

    def hello(self, windows: dict[str, int], installed: int | None = None) -> None:
        """Introduces the client, ready to work; answered by a Welcome."""
        self._post([encode_message(Hello(
            protocol=PROTOCOL_VERSION, schema=schema_fingerprint(), role=self.role, name=self.name, incarnation=self._incarnation,
            pipeline="", ready=True, windows=windows, installed=installed, resume_step=0, pid=os.getpid(), deliveries=DELIVERIES,
        ))])  # fmt: skip

    def welcomed(self) -> None:
        """Waits for the welcome."""
        while not self._epoch:
            if not self.socket.poll(60_000):
                raise BrokerRefusedError(f"{self.name}: no welcome from the broker within 60 s")
            self.receive(1)  # what was ordered right behind the welcome is left for whoever works

    def _post(self, parts: Sequence[Frame]) -> None:
        send_parts(self.socket, parts, ZERO_COPY_BYTES)

    def commit(
        self, acks: Sequence[int] = (), puts: Sequence[Header] = (), frames: Sequence[Frame] = (), fails: Sequence[Failure] = ()
    ) -> int:
        """Sends one unit of work; returns its number."""
        seq = self._next_seq
        message = Commit(epoch=self._epoch, seq=seq, acks=tuple(acks), puts=tuple(puts), fails=tuple(fails))
        parts = [encode_message(message), *frames]
        self._unanswered.append((seq, parts))
        self._next_seq += 1
        self._post(parts)
        return seq

    @property
    def answered(self) -> int:
        """All commits up to this number are durable."""
        return (self._unanswered[0][0] if self._unanswered else self._next_seq) - 1

    def beat(self) -> None:
        """A heartbeat, where one is due."""
        now = time.monotonic()
        if now > self._beat_at and self._epoch:
            self._beat_at = now + BEAT_SECONDS
            self._post([encode_message(Heartbeat())])

    def receive(self, at_most: int = DRAIN_MESSAGES) -> list[Received]:
        """What is there, bounded, without waiting; the protocol's own messages are dealt with here."""
        orders: list[Received] = []
        for _ in range(at_most):
            try:
                message, frames = receive_parts(self.socket)
            except zmq.Again:
                break
            if isinstance(message, Deliveries):
                orders += each_delivery(message, frames)
            elif not self._own(message):
                orders.append((message, frames))
        return orders

    def _own(self, message: BrokerMessage) -> bool:
        if isinstance(message, Committed):
            while self._unanswered and self._unanswered[0][0] <= message.seq:
                self._unanswered.popleft()
        elif isinstance(message, ResendFrom):
            for seq, parts in self._unanswered:
                if seq >= message.seq:
                    self._post(parts)
        elif isinstance(message, Welcome):
            self._epoch = message.epoch
        elif isinstance(message, Refuse):
            raise BrokerRefusedError(f"{self.name}: refused ({message.reason}): {message.detail}")
        else:
            return False
        return True
