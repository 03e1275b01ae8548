"""What a journal tells about a run when it is read again: a fold of all entries, with an eye on what must never happen."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from broker.core.events import Event, Received, Restarted, Started, decode_event
from broker.core.invariants import violations
from broker.core.state import State
from broker.core.step import begin, step
from broker.journal import Entry
from schemas.messages import Commit, Hello, ProcessExited

CHECK_EVERY = 100
"""Entries between two looks at the invariants."""


@dataclass
class Account:
    """`take` every entry in order; then everything here is what the run amounts to."""

    state: State | None = None
    broken: list[str] = field(default_factory=list)
    committed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Tickets of each committed step of the surviving lineage."""
    steps_lost: int = 0
    issued: dict[int, int] = field(default_factory=dict)
    """Task index of every train group that was ever issued."""
    through: set[int] = field(default_factory=set)
    """Groups that were trained, or dropped because their rewards did not differ."""
    exits: list[tuple[str, int]] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    """The broker's clock at each."""
    puts: list[float] = field(default_factory=list)
    """The broker's clock at each commit that put something."""
    entries: int = 0
    snapshots: dict[int, bytes] = field(default_factory=dict)
    """State before the entry of each number in `wanted`, as bytes."""
    wanted: frozenset[int] = frozenset()
    _now: float = 0.0

    def take(self, entry: Entry) -> None:
        event = decode_event(entry.event)
        if entry.number in self.wanted and self.state is not None:
            self.snapshots[entry.number] = msgspec.msgpack.encode(self.state)
        if entry.now < self._now:
            self.broken.append(f"entry {entry.number}: the broker's clock went back from {self._now} to {entry.now}")
        self._now, self.entries = entry.now, entry.number + 1
        if isinstance(event, Started):
            self.state = begin(event, entry.now)
            return
        assert self.state is not None, "a journal begins with the run's start"
        self._before(self.state, event, entry)
        old_step, old_group, uniform = self.state.trainer.step, self.state.next_group, self.state.ledger.dropped.get("no_spread", 0)
        groups = set(self.state.groups) if isinstance(event, Received) else set()
        step(self.state, event, entry.now)
        self._new_groups(self.state, old_group)
        self._new_steps(self.state, old_step)
        if self.state.ledger.dropped.get("no_spread", 0) > uniform:
            self.through |= groups - self.state.groups.keys()
        if entry.number % CHECK_EVERY == 0:
            self.broken += [f"entry {entry.number}: {wrong}" for wrong in violations(self.state)]

    def close(self) -> State:
        """The state at the end, looked at once more."""
        assert self.state is not None, "an empty journal"
        if self.entries in self.wanted:
            self.snapshots[self.entries] = msgspec.msgpack.encode(self.state)
        self.broken += [f"at the end: {wrong}" for wrong in violations(self.state)]
        return self.state

    def _before(self, state: State, event: Event, entry: Entry) -> None:
        if isinstance(event, Restarted):
            self.restarts.append(entry.now)
        if not isinstance(event, Received):
            return
        message = event.message
        if isinstance(message, Hello):
            self._hello(state, message, entry.number)
        elif isinstance(message, ProcessExited):
            self.exits.append((message.name, message.code))
        elif isinstance(message, Commit) and message.puts:
            self.puts.append(entry.now)

    def _hello(self, state: State, hello: Hello, number: int) -> None:
        """Whatever was acknowledged to a client must be known: it has forgotten those messages."""
        client = state.clients.get(hello.name)
        if client is None or client.incarnation != hello.incarnation or (client.pid and hello.pid and client.pid != hello.pid):
            return
        if hello.next_seq > client.next_seq:
            self.broken.append(
                f"entry {number}: {hello.name} was answered up to {hello.next_seq - 1}, the journal knows up to {client.next_seq - 1}"
            )

    def _new_groups(self, state: State, first: int) -> None:
        for number in range(first, state.next_group):
            group = state.groups.get(number)
            if group is not None and group.purpose == "train":
                self.issued[number] = group.task_index

    def _new_steps(self, state: State, before: int) -> None:
        now = state.trainer.step
        for number in range(before + 1, now + 1):
            self.committed[number] = state.steps[number].tickets
            self.through |= set(state.steps[number].groups)
        for number in range(now + 1, before + 1):  # a history that is over
            del self.committed[number]
            self.steps_lost += 1
