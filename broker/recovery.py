"""Recovery: state and arena as a dead broker left them, from its journal: the newest checkpoint, and a fold of the entries after it.

Promises the state, byte for byte, that a fold of the whole journal gives. What cannot be had is not passed over: lost
entries stop it (unless `accept_loss`), lost frames of a record are returned for the core to end what needs them.
"""

from __future__ import annotations

import time

import msgspec
import structlog
from msgspec import Struct

from broker.arena import Arena
from broker.core.events import Started, decode_event, puts_of
from broker.core.state import State
from broker.core.step import begin, step
from broker.journal import Checkpoint, Entry, Journal
from schemas.errors import JournalDamagedError

log = structlog.get_logger()

decode_state = msgspec.msgpack.Decoder(State).decode
encode_state = msgspec.msgpack.Encoder().encode


class Recovered(Struct):
    """`now`: time of the last entry; `damaged`: messages still needed whose frames are lost."""

    state: State
    now: float
    damaged: tuple[int, ...]


def recover(journal: Journal, arena: Arena, *, accept_loss: bool = False) -> Recovered | None:
    """None where the journal is new. Raises JournalDamagedError where what the state needs is lost."""
    began = time.monotonic()
    checkpoint, state = _newest(journal)
    now = checkpoint.now if checkpoint is not None else 0.0
    if checkpoint is not None:
        arena.load(checkpoint.arena)
    for entry in journal.read(checkpoint, accept_loss=accept_loss):
        state, now = fold(state, arena, entry), entry.now
    if state is None:
        return None
    damaged = arena.fetch(journal.entry_at)
    journal.watch_over(checkpoint)
    log.info("recovered", entries=journal.next_number, from_entry=checkpoint.number if checkpoint is not None else 0,
             seconds=round(time.monotonic() - began, 3), phase=state.phase.value, cut_bytes=journal.cut_bytes)  # fmt: skip
    return Recovered(state, now, damaged)


def _newest(journal: Journal) -> tuple[Checkpoint | None, State | None]:
    for checkpoint in journal.checkpoints():
        try:
            return checkpoint, decode_state(checkpoint.state)
        except msgspec.MsgspecError as error:
            log.warning("checkpoint_of_another_version", number=checkpoint.number, detail=str(error))
    return None, None


def fold(state: State | None, arena: Arena, entry: Entry) -> State:
    """Hands one entry to the core, and what it orders to the arena."""
    event = decode_event(entry.event)
    if isinstance(event, Started):
        return begin(event, entry.now)
    if state is None:
        raise JournalDamagedError("the journal does not begin with a run's start; was its first segment removed?", acceptable=False)
    for action in step(state, event, entry.now):
        arena.take(action, puts_of(event), entry.frames if entry.frames_whole else None, entry.position)
    return state
