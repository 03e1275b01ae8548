"""A fold of a journal as far as it is honest: from the run's start, a checkpoint or a snapshot, up to where entries are lost.

Promises: where an entry is lost, or this code cannot take an event, folding stops and `note` says so; it goes on at the next checkpoint
that the broker wrote. Where the broker's own checkpoint says another state than the fold, `note` says that too.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker.core.actions import Action
from broker.core.events import Event, Started, decode_event
from broker.core.state import State
from broker.core.step import begin
from broker.journal import Checkpoint, Entry
from broker.journal import checkpoint as checkpoints
from schemas.errors import TidemillError
from tools.records.lives import Fact, Lives

MISFITS = (TidemillError, msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What stepping an event that another version of the core recorded may end in."""

encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(State).decode


class Folded(msgspec.Struct, gc=False):
    """What one entry led to."""

    event: Event
    actions: list[Action]
    facts: list[Fact]


class Fold:
    """Hands entries to the core, in order. `lives` is None while there is no state to go on from."""

    def __init__(self, journal: Path, state: State | None = None, note: str = "") -> None:
        self.lives = Lives(state) if state is not None else None
        self.note = note
        self._checkpoints = {int(path.stem): path for path in checkpoints.paths(journal)}

    def lose(self, why: str) -> None:
        """Entries are missing: the state after them is not known."""
        if self.lives is not None:
            self.note = self.note or f"not followed further: {why}"
        self.lives = None

    def take(self, entry: Entry) -> Folded | None:
        """None where the entry cannot be folded."""
        self.meet(entry.number)
        try:
            event = decode_event(entry.event)
            if isinstance(event, Started):
                self.lives = Lives(begin(event, entry.now))
                return Folded(event, [], [])
            if self.lives is None:
                self.note = self.note or f"entry {entry.number}: no state to start from; the entries before it are gone"
                return None
            return Folded(event, *self.lives.step(event, entry.now, entry.number))
        except MISFITS as error:
            self.lives = None
            self.note = self.note or f"entry {entry.number} is of another version of the broker ({type(error).__name__}: {error})"
            return None

    def meet(self, number: int) -> None:
        """If the broker wrote a checkpoint before this entry: where the fold has no state it is taken up, else compared."""
        path = self._checkpoints.pop(number, None)
        found = _read(path) if path is not None else None
        if found is None:
            return
        if self.lives is None:
            self._adopt(found)
        elif (known := state_of(found.state)) is None or encode_state(self.lives.state) != encode_state(known):
            self.note = self.note or f"entry {number}: the broker had another state than this version's fold gives; what follows may differ"

    def _adopt(self, found: Checkpoint) -> None:
        state = state_of(found.state)
        if state is not None:
            self.lives = Lives(state)


def _read(path: Path) -> Checkpoint | None:
    """None where it is damaged, or a running broker has just removed it."""
    try:
        return checkpoints.read(path)
    except FileNotFoundError:
        return None


def state_of(data: bytes) -> State | None:
    """A state, or None where it is of another version."""
    try:
        return _decode_state(data)
    except msgspec.MsgspecError:
        return None
