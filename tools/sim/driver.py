"""The broker's edge under a virtual clock: what `broker/driver.py` does, with a heap in place of sockets, timers and disk.

Owns state, arena and, where wanted, the journal. Promises: every event is recorded before it is stepped, as live; a restart loses what was
on its way, and its state is folded anew from what was recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from broker.arena import Arena
from broker.core.actions import Action, EndRun, Note, Reply, Send, StepMetrics
from broker.core.events import Event, Received, Restarted, Started, Tick, decode_event, encode_event
from broker.core.state import Failed, State
from broker.core.step import begin, next_wake, step
from broker.journal import Journal
from schemas.codec import Frame
from schemas.header import Header
from schemas.messages import BrokerMessage, ClientMessage, Commit

COMMIT_EVERY = 500
"""Events in one write of the journal: nobody acts on a simulated journal before the run is over."""

Watch = Callable[[State, Event, Sequence[Action]], None]
"""Looks at the state after every event; raises where something is wrong."""


class Entry(Struct, frozen=True):
    """One event as it was recorded."""

    now: float
    event: bytes
    frames: tuple[Frame, ...]


class Net(Protocol):
    """Carries what the broker sends, and wakes it."""

    now: float

    def to_client(self, identity: str, message: BrokerMessage, frames: Sequence[Frame]) -> None: ...
    def at(self, when: float, call: Callable[[], object]) -> None: ...


class Driver:
    """Owns one run's broker. `entries` is the run's journal in memory, None where it is not kept."""

    def __init__(self, net: Net, started: Started, *, directory: Path | None, keep: bool, watch: Watch | None) -> None:
        self._net = net
        self._watch = watch
        self._journal = Journal(directory / "journal") if directory is not None else None
        self.entries: list[Entry] | None = [] if keep else None
        self.arena = Arena()
        self.life = 0
        """Rises with each death: what was sent to or by an earlier life is lost."""
        self.up_at = 0.0
        self.ended = False
        self.failure: Failed | None = None
        self.notes: Counter[str] = Counter()
        self.decisions: list[tuple[float, Note]] = []
        self.step_metrics: dict[int, dict[str, float]] = {}
        self.events = 0
        self.core_seconds = 0.0
        if self._journal is not None and list(self._journal.read()):
            raise FileExistsError(f"{directory}: holds a journal already; choose another directory")
        self._record(started, ())
        self.state = begin(started, net.now)
        self._tick(self.life)

    # --- life and death -----------------------------------------------------------------------------------------------------

    def kill(self, down_s: float) -> None:
        """Gone now, back `down_s` later."""
        self.life += 1
        self.up_at = self._net.now + down_s
        life = self.life
        self._net.at(self.up_at, lambda: self._come_back(life))

    def _come_back(self, life: int) -> None:
        if life != self.life:
            return
        if self.entries is not None:
            self.state, self.arena = fold(self.entries)
        self.handle(Restarted())
        self._tick(life)

    def resume(self) -> None:
        """A new broker starts on the journal of a run that has ended."""
        self.life, self.ended, self.failure = self.life + 1, False, None
        self.up_at = self._net.now
        self._come_back(self.life)

    @property
    def is_up(self) -> bool:
        """False between a kill and the restart."""
        return self._net.now >= self.up_at

    def _tick(self, life: int) -> None:
        if life != self.life or self.ended:
            return
        self.handle(Tick())
        self._net.at(next_wake(self.state, self._net.now), lambda: self._tick(life))

    # --- events -------------------------------------------------------------------------------------------------------------

    def receive(self, identity: str, message: ClientMessage, frames: Sequence[Frame]) -> None:
        """A client's message has arrived."""
        if not self.ended:
            self.handle(Received(sender=identity, message=message), frames if isinstance(message, Commit) else (), identity)

    def handle(self, event: Event, frames: Sequence[Frame] = (), identity: str = "") -> None:
        """Records one event, steps the core, carries out what it orders."""
        self._record(event, frames)
        began = time.thread_time()
        actions = step(self.state, event, self._net.now)
        self.core_seconds += time.thread_time() - began
        self.events += 1
        self._carry_out(event, actions, frames, identity)
        if self._watch is not None:
            self._watch(self.state, event, actions)

    def _record(self, event: Event, frames: Sequence[Frame]) -> None:
        if self.entries is None and self._journal is None:
            return
        data = encode_event(event)
        if self.entries is not None:
            self.entries.append(Entry(self._net.now, data, tuple(frames)))
        if self._journal is not None and self._journal.append(data, self._net.now, frames) % COMMIT_EVERY == 0:
            self._journal.commit()

    def _carry_out(self, event: Event, actions: Sequence[Action], frames: Sequence[Frame], identity: str) -> None:
        puts = puts_of(event)
        for action in actions:
            if isinstance(action, Send):
                sent = [frame for part in action.attach for frame in self.arena.frames_of(part)]
                self._net.to_client(f"{action.client}/{self.state.clients[action.client].incarnation}", action.message, sent)
            elif isinstance(action, Reply):
                self._net.to_client(identity, action.message, ())
            elif isinstance(action, Note):
                self.notes[action.kind] += 1
                self.decisions.append((self._net.now, action))
            elif isinstance(action, StepMetrics):
                self.step_metrics[action.step] = action.metrics
            elif isinstance(action, EndRun):
                self.failure, self.ended = action.failure, True
            else:
                self.arena.take(action, puts, frames)

    def close(self) -> None:
        """Writes what is left of the journal."""
        if self._journal is not None:
            self._journal.close()


def puts_of(event: Event) -> tuple[Header, ...]:
    """Headers of the records that an event carries."""
    if isinstance(event, Received) and isinstance(event.message, Commit):
        return event.message.puts
    return ()


def fold(entries: Sequence[Entry]) -> tuple[State, Arena]:
    """State and arena that a broker has which starts on these entries; the first is the run's start."""
    first = decode_event(entries[0].event)
    if not isinstance(first, Started):
        raise ValueError(f"a journal begins with a run's start, not with {type(first).__name__}")
    state, arena = begin(first, entries[0].now), Arena()
    for entry in entries[1:]:
        event = decode_event(entry.event)
        for action in step(state, event, entry.now):
            arena.take(action, puts_of(event), entry.frames)
    return state, arena
