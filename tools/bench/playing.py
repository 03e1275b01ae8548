"""Sessions over real connections: many envs and replicas in two processes, each client with a connection of its own.

Every session is the real thing up to its engine and environment: ticket leased, turn put, placed and leased, action put and turn
acknowledged in one commit, action leased, and acknowledged in the commit that puts the next turn. After `TURNS` turns the env gives the
ticket back and plays it anew, so that sessions have a length. Waits that an engine or a tool would add are left out.
"""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np
import zmq
from msgspec import Struct

from broker.lifeline import die_with_parent
from schemas.codec import Frame, encode_record, make_header
from schemas.edges import Role
from schemas.header import Header
from schemas.messages import Deliver, Failure
from schemas.records import Action, Record, Sampling, Turn, VersionSpan
from tools.bench.load import quantiles
from tools.bench.wire import Link

TURNS = 16
TURN_TOKENS = 500
"""2 KB of int32."""
ACTION_TOKENS = 32
POLL_MS = 200


class Table(Struct, frozen=True, kw_only=True):
    """What one of the two processes is told."""

    side: str
    """`env` or `rollout`."""
    endpoint: str
    clients: int
    window: int
    """Turns that one replica takes at a time."""
    seconds: float
    warm_seconds: float


class Played(Struct, frozen=True, kw_only=True):
    """What it found. A turn counts once its action has arrived and was answered with the next turn."""

    turns: int
    seconds: float
    p50_ms: float
    """From putting a turn to its action's arrival."""
    p99_ms: float
    cpu_seconds: float


class Room:
    """Connections of one process on one poller."""

    def __init__(self, table: Table, role: Role, windows: dict[str, int]) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, table.clients + 64)
        self.poller = zmq.Poller()
        self.links: dict[zmq.Socket[bytes], Link] = {}
        for number in range(table.clients):
            link = Link(context, table.endpoint, role, f"{role}-{number}")
            link.hello(windows, installed=0 if role is Role.ROLLOUT else None)
            self.links[link.socket] = link
            self.poller.register(link.socket, zmq.POLLIN)
        for link in self.links.values():
            link.welcomed()

    def beat(self) -> None:
        """Heartbeats where they are due."""
        for link in self.links.values():
            link.beat()

    def ready(self) -> list[Link]:
        """Those that have something to read; waits a little for the first."""
        return [self.links[socket] for socket, _ in self.poller.poll(POLL_MS)]


class Envs:
    """The envs' side: keeps every session moving, and counts."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.room = Room(table, Role.ENV, {"tickets": 1})
        self.turns = 0
        self.waits: list[int] = []
        self._tickets: dict[str, int] = {}
        self._put_at: dict[str, int] = {}
        self._tokens = np.arange(TURN_TOKENS, dtype=np.int32)

    def play(self) -> Played:
        """Warms up, then measures."""
        self._until(time.monotonic() + self.table.warm_seconds)
        self.turns, self.waits = 0, []
        began, cpu = time.monotonic(), time.process_time()
        self._until(began + self.table.seconds)
        took = time.monotonic() - began
        p50, p99 = quantiles(self.waits)
        return Played(turns=self.turns, seconds=took, p50_ms=p50, p99_ms=p99, cpu_seconds=time.process_time() - cpu)

    def _until(self, end: float) -> None:
        beat_at = 0.0
        while (now := time.monotonic()) < end:
            for link in self.room.ready():
                for message, _ in link.receive():
                    if isinstance(message, Deliver):
                        self._on_delivery(link, message)
            if now > beat_at:
                beat_at = now + 0.5
                self.room.beat()

    def _on_delivery(self, link: Link, order: Deliver) -> None:
        if order.header.queue == "tickets":
            self._tickets[link.name] = order.lease
            self._put_turn(link, order.header, 0, 0, ())
            return
        self.waits.append(time.monotonic_ns() - self._put_at[link.name])
        self.turns += 1
        number = (order.header.turn or 0) + 1
        if number < TURNS:
            self._put_turn(link, order.header, number, number * (TURN_TOKENS + ACTION_TOKENS), (order.lease,))
        else:
            link.commit(fails=(Failure(lease=self._tickets.pop(link.name), boundary="bench", reason="played to its end"),))

    def _put_turn(self, link: Link, of: Header, number: int, context: int, acks: tuple[int, ...]) -> None:
        turn = Turn(context_digest=0, sampling=Sampling(), seed=7, tokens=self._tokens)
        header, frames = _record(turn, of, "turns", number, context, TURN_TOKENS)
        self._put_at[link.name] = time.monotonic_ns()
        link.commit(acks=acks, puts=(header,), frames=frames)


class Replicas:
    """The replicas' side: answers every turn at once."""

    def __init__(self, table: Table) -> None:
        self.room = Room(table, Role.ROLLOUT, {"turns": table.window})
        self._tokens = np.arange(ACTION_TOKENS, dtype=np.int32)
        self._logprobs = np.zeros(ACTION_TOKENS, np.float32)

    def answer_for_ever(self) -> None:
        """Until the process is ended."""
        beat_at = 0.0
        while True:
            for link in self.room.ready():
                for message, _ in link.receive():
                    if isinstance(message, Deliver):
                        self._answer(link, message)
            if time.monotonic() > beat_at:
                beat_at = time.monotonic() + 0.5
                self.room.beat()

    def _answer(self, link: Link, order: Deliver) -> None:
        of = order.header
        context = (of.context_tokens or 0) + TURN_TOKENS
        span = VersionSpan(context, context + ACTION_TOKENS, 0)
        action = Action(finish_reason="stop", sample_spans=(span,), kv_spans=(span,), tokens=self._tokens, logprobs=self._logprobs,
                        kept_ids=np.empty(0, np.int32), kept_counts=np.empty(0, np.int32))  # fmt: skip
        header, frames = _record(action, of, "actions", of.turn or 0, context, ACTION_TOKENS)
        link.commit(acks=(order.lease,), puts=(header,), frames=frames)


def _record(record: Record, of: Header, queue: str, turn: int, context: int, new: int) -> tuple[Header, list[Frame]]:
    frames = encode_record(record)
    header = make_header(
        record, frames, pipeline=of.pipeline, queue=queue, ticket=of.ticket, group=of.group, member=of.member, attempt=of.attempt,
        purpose=of.purpose, turn=turn, context_tokens=context, new_tokens=new, newest_version=0,
    )  # fmt: skip
    return header, frames


def main() -> None:
    """`python -m tools.bench.playing TABLE`: connects, says `ready`; an env process then waits for `go`, plays and prints what it found."""
    die_with_parent()
    table = msgspec.json.decode(sys.argv[1], type=Table)
    if table.side == "rollout":
        replicas = Replicas(table)
        print("ready", flush=True)
        replicas.answer_for_ever()
    envs = Envs(table)
    print("ready", flush=True)
    sys.stdin.readline()
    print(msgspec.json.encode(envs.play()).decode(), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
