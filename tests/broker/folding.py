"""Folding a journal by hand: what a broker's state and arena must equal."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from broker.arena import Arena
from broker.core.events import Event, Started, decode_event, puts_of
from broker.core.invariants import violations
from broker.core.state import State
from broker.core.step import begin, step
from broker.journal import Entry, Journal


def entries_of(run: Path) -> list[Entry]:
    """All entries of a run's journal, read from a copy."""
    copy = run / "journal.copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run / "journal", copy)
    journal = Journal(copy)
    entries = list(journal.read())
    journal.close()
    return entries


def events_of(run: Path) -> list[Event]:
    return [decode_event(entry.event) for entry in entries_of(run)]


def fold(entries: list[Entry]) -> tuple[State, Arena]:
    """State and arena after `entries`, the invariants checked after each."""
    state, arena = None, Arena()
    for entry in entries:
        event = decode_event(entry.event)
        if isinstance(event, Started):
            state = begin(event, entry.now)
            continue
        assert state is not None, "a journal begins with the run's start"
        for action in step(state, event, entry.now):
            arena.take(action, puts_of(event), entry.frames, entry.position)
        assert violations(state) == [], f"entry {entry.number}"
    assert state is not None
    return state, arena


def as_bytes(state: State) -> bytes:
    return msgspec.msgpack.encode(state)
