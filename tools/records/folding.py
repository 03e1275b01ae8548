"""A fold of a journal as far as it is honest: from the run's start, a checkpoint or a snapshot, up to where entries are lost.

Promises: where an entry is lost, or this code cannot take an event, folding stops and `note` says so; it goes on at the next checkpoint
that the broker wrote. Where the broker's own checkpoint says another state than the fold, `note` says that too.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker.core.actions import Action, Forget, Keep, Store
from broker.core.events import Event, Received, Started, decode_event, puts_of
from broker.core.state import State
from broker.core.step import begin
from broker.journal import Checkpoint, Contents, Entry, Place
from broker.journal import checkpoint as checkpoints
from schemas.codec import encode_record
from schemas.errors import TidemillError
from schemas.header import Header
from schemas.messages import Commit
from schemas.records import Record
from tools.records.dialect import Dialect
from tools.records.lives import Fact, Lives
from tools.records.tables import Snapshot

MISFITS = (TidemillError, msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What stepping an event that another version of the core recorded may end in."""

SOON_ENTRIES = 20_000
"""About what a broker lets pass between two checkpoints."""

encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(State).decode
_decode_contents = msgspec.msgpack.Decoder(Contents).decode


class Folded(msgspec.Struct, gc=False):
    """What one entry led to."""

    event: Event
    actions: list[Action]
    facts: list[Fact]
    puts: tuple[Header, ...] = ()


class Places:
    """Where the frames of the records lie that the broker still has: what its arena is, without a byte of them."""

    def __init__(self, known: Contents | None = None) -> None:
        self._placed: dict[int, Place] = dict(known.placed) if known is not None else {}
        self._inline: dict[int, tuple[bytes, ...]] = dict(known.inline) if known is not None else {}
        self._made: dict[int, Record] = {}

    def take(self, actions: list[Action], puts: tuple[Header, ...], entry: Entry) -> None:
        """Carries out what concerns them."""
        for action in actions:
            if isinstance(action, Keep):
                start = 0
                for message, header in zip(action.messages, puts, strict=True):
                    if message:
                        self._placed[message] = Place(entry.position.segment, entry.position.offset, start, len(header.frames))
                    start += len(header.frames)
            elif isinstance(action, Store):
                self._made[action.message] = action.record
            elif isinstance(action, Forget):
                for message in action.messages:
                    for known in (self._placed, self._inline, self._made):
                        known.pop(message, None)

    def contents(self) -> Contents:
        """As a checkpoint keeps them."""
        made = {message: tuple(map(bytes, encode_record(record))) for message, record in self._made.items()}
        return Contents(placed=dict(self._placed), inline={**self._inline, **made})


class Fold:
    """Hands entries to the core, in order. `lives` is None while there is no state to go on from."""

    def __init__(self, journal: Path, state: State | None = None, note: str = "", places: Contents | None = None) -> None:
        self.lives = Lives(state) if state is not None else None
        self.places = Places(places)
        self.is_brief = False
        """Facts `put` and `leased` are left out."""
        self._dialect = Dialect(journal.parent)
        self.note = note
        self._checkpoints = {int(path.stem): path for path in checkpoints.paths(journal)}

    def lose(self, why: str) -> None:
        """Entries are missing: the state after them is not known."""
        if self.lives is not None:
            self.note = self.note or f"not followed further: {why}"
        self.lives = None

    def is_lost(self, number: int) -> bool:
        """There is no state to go on from, and none soon behind this entry: nothing more is said of what was under way."""
        return self.lives is None and not any(number <= known <= number + SOON_ENTRIES for known in self._checkpoints)

    def take(self, entry: Entry) -> Folded | None:
        """None where the entry cannot be folded."""
        self.meet(entry.number)
        try:
            event = self._dialect.now(decode_event(entry.event))
            if isinstance(event, Started):
                self.lives, self.places = Lives(begin(event, entry.now)), Places()
                return Folded(event, [], [])
            if self.lives is None:
                self.note = self.note or f"entry {entry.number}: no state to start from; the entries before it are gone"
                return None
            if (stranger := unknown_lease(self.lives.state, event)) is not None:
                self.lose(f"entry {entry.number} {stranger}")
                return None
            actions, facts = self.lives.step(event, entry.now, entry.number, is_brief=self.is_brief)
            puts = puts_of(event)
            self.places.take(actions, puts, entry)
            return Folded(event, actions, facts, puts)
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
            self.lives, self.places = Lives(state), Places(found.arena)


def unknown_lease(state: State, event: Event) -> str | None:
    """Where a client answers for a lease that this fold has not given yet, the recorded broker decided otherwise than this one does."""
    if not isinstance(event, Received) or not isinstance(event.message, Commit):
        return None
    highest = max((*event.message.acks, *(failure.lease for failure in event.message.fails)), default=0)
    if highest < state.next_lease:
        return None
    return f"answers for lease {highest}, which this version's fold never gave: the broker that was recorded decided otherwise"


def fold_from(journal: Path, start: Snapshot | None, note: str = "") -> Fold:
    """A fold that goes on from a kept state; from the run's start where there is none, or it is of another version."""
    state = state_of(start.state) if start is not None else None
    return Fold(journal, state, note, contents_of(start.arena) if start is not None and state is not None else None)


def contents_of(data: bytes) -> Contents:
    """Of a kept state."""
    return _decode_contents(data)


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
