"""The pure core by itself: no socket, journal or clock. Turns a second with a thousand clients; what placing a turn costs in a large fleet.

Sessions are driven as real clients would drive them, by the same messages; building those messages is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

from msgspec import Struct

from broker.core.actions import Action, Send
from broker.core.events import Event, Received, Started
from broker.core.state import State
from broker.core.step import begin, step
from schemas.codec import Frame, encode_record, make_header
from schemas.edges import Role
from schemas.header import Header
from schemas.lock import schema_fingerprint
from schemas.messages import PROTOCOL_VERSION, Commit, Deliver, Hello
from schemas.records import Action as ActionRecord
from schemas.records import Record, Sampling, Turn
from tools.bench.systems.tidemill import bench_config

TURN_TOKENS, ACTION_TOKENS = 500, 32
CHUNK = 500
"""Turns between two readings of the clock: the median over chunks leaves out what other processes took."""


class Fleet:
    """Envs and replicas on a core that this process steps itself."""

    def __init__(self, folder: Path, envs: int, sessions: int, replicas: int, window: int) -> None:
        total = envs * sessions
        config = bench_config(folder, f"schedule.groups_per_step={(total + 1) // 2}", "broker.budget_bytes=1000000000000000")
        self.state: State = begin(Started(config=config, run_directory=""), 0.0)
        self.spent = 0.0
        self._now = 0.0
        self._seqs: dict[str, int] = {}
        self.turns: deque[tuple[str, Deliver]] = deque()
        self.actions: deque[tuple[str, Deliver]] = deque()
        self.tickets: deque[tuple[str, Deliver]] = deque()
        self._turn = _frames_of(Turn(context_digest=0, sampling=Sampling(), seed=1, tokens=_zeros(TURN_TOKENS, "<i4")))
        self._action = _frames_of(ActionRecord(
            finish_reason="stop", sample_spans=(), kv_spans=(), tokens=_zeros(ACTION_TOKENS, "<i4"), logprobs=_zeros(ACTION_TOKENS, "<f4"),
            kept_ids=_zeros(0, "<i4"), kept_counts=_zeros(0, "<i4"),
        ))  # fmt: skip
        for number in range(replicas):
            self._hello(Role.ROLLOUT, number, {"turns": window}, installed=0)
        for number in range(envs):
            self._hello(Role.ENV, number, {"tickets": sessions})
        for client, order in self.tickets:
            self.put_turn(client, order.header, 0, ())

    def _hello(self, role: Role, number: int, windows: dict[str, int], installed: int | None = None) -> None:
        name = f"{role}-{number}"
        self._seqs[name] = 1
        hello = Hello(
            protocol=PROTOCOL_VERSION, schema=schema_fingerprint(), role=role, name=name, incarnation="1", pipeline="", ready=True,
            windows=windows, installed=installed,
        )  # fmt: skip
        self._step(Received(sender=f"{name}/1", message=hello))

    def _step(self, event: Event) -> float:
        """Steps the core, sorts what it orders; returns the seconds of the step alone."""
        self._now += 1e-4
        began = time.perf_counter()
        actions = step(self.state, event, self._now)
        took = time.perf_counter() - began
        self.spent += took
        self._sort(actions)
        return took

    def _sort(self, actions: list[Action]) -> None:
        places = {"turns": self.turns, "actions": self.actions, "tickets": self.tickets}
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Deliver):
                places[action.message.header.queue].append((action.client, action.message))

    def _commit(self, client: str, acks: tuple[int, ...], header: Header) -> float:
        seq = self._seqs[client]
        self._seqs[client] = seq + 1
        return self._step(Received(sender=f"{client}/1", message=Commit(epoch=1, seq=seq, acks=acks, puts=(header,))))

    def put_turn(self, client: str, of: Header, number: int, acks: tuple[int, ...]) -> float:
        """An env's commit; returns the seconds of its step."""
        header = _header(*self._turn, of, "turns", number, number * (TURN_TOKENS + ACTION_TOKENS), TURN_TOKENS)
        return self._commit(client, acks, header)

    def answer_turn(self) -> float:
        """The replica with the oldest leased turn answers it."""
        client, order = self.turns.popleft()
        context = (order.header.context_tokens or 0) + TURN_TOKENS
        return self._commit(client, (order.lease,), _header(*self._action, order.header, "actions", order.header.turn or 0, context,
                                                            ACTION_TOKENS))  # fmt: skip

    def answer_action(self) -> float:
        """The env with the oldest leased action puts its next turn; that turn is placed in the same step."""
        client, order = self.actions.popleft()
        return self.put_turn(client, order.header, (order.header.turn or 0) + 1, (order.lease,))


class _Found(Struct):
    rates: list[float]
    placing_ms: list[float]


def _cycle(fleet: Fleet, seconds: float) -> _Found:
    found = _Found([], [])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before, placing = fleet.spent, 0.0
        for _ in range(CHUNK):
            fleet.answer_turn()
            placing += fleet.answer_action()
        found.rates.append(CHUNK / (fleet.spent - before))
        found.placing_ms.append(1e3 * placing / CHUNK)
    return found


def core_alone(folder: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Turns a second of one core that serves `clients` envs, with a replica for every sixteen."""
    found = _cycle(Fleet(folder, envs=clients, sessions=1, replicas=max(1, clients // 16), window=32), seconds)
    return {"clients": clients, "turns_per_second": statistics.median(found.rates), "min": min(found.rates), "max": max(found.rates)}


def placement(folder: Path, replicas: int, in_flight: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of the whole step that puts and places one turn, in a full fleet and, beside it, with one replica."""
    envs = max(1, replicas // 4)
    large = Fleet(folder, envs=envs, sessions=in_flight // envs, replicas=replicas, window=in_flight // replicas)
    leased = len(large.turns)
    full = _cycle(large, seconds).placing_ms
    small = _cycle(Fleet(folder, envs=1, sessions=16, replicas=1, window=16), seconds / 4).placing_ms
    return {
        "replicas": replicas, "turns_in_flight": leased, "step_ms": statistics.median(full), "min": min(full), "max": max(full),
        "step_ms_with_one_replica": statistics.median(small), "placement_ms": statistics.median(full) - statistics.median(small),
    }  # fmt: skip


def _zeros(count: int, dtype: str) -> Any:
    import numpy as np

    return np.zeros(count, dtype)


def _frames_of(record: Record) -> tuple[Record, list[Frame]]:
    return record, encode_record(record)


def _header(record: Record, frames: list[Frame], of: Header, queue: str, turn: int, context: int, new: int) -> Header:
    return make_header(
        record, frames, pipeline=of.pipeline, queue=queue, ticket=of.ticket, group=of.group, member=of.member, attempt=of.attempt,
        purpose=of.purpose, turn=turn, context_tokens=context, new_tokens=new, newest_version=0,
    )  # fmt: skip
