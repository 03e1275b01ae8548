"""A recorded run as the broker lived it: each event, what the core ordered on it, and the frames of those orders.

Folds the journal through the real core, with the arena beside it. Promises: events in order, none twice; reading ends, and `note` says
why, where entries are lost. Writes nothing. Begins with the run's start, or with a kept state; where the first segments are gone, with
the oldest checkpoint that is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from broker.arena import Arena
from broker.core.actions import Action, Attachment, Reply, Send
from broker.core.events import Event, Received, Started, decode_event, puts_of
from broker.core.state import State
from broker.core.step import begin, step
from broker.journal import Contents, Entry, Position
from broker.journal import checkpoint as checkpoints
from broker.journal.reading import Damage, Scan, entry_at
from broker.policy.registry import DEFAULT, Policies
from schemas.codec import Frame
from schemas.errors import JournalError
from schemas.messages import BrokerMessage, Deliver, InstallOrder, Plan
from tools.records.dialect import Dialect
from tools.records.folding import contents_of, unknown_lease
from tools.records.progress import Progress, Way, sizes_of
from tools.records.tables import Snapshot

SHOWN_DAMAGES = 20

_decode_state = msgspec.msgpack.Decoder(State).decode


class Order(Struct, frozen=True, gc=False):
    """A message that went to a client, with its frames. `sender` is the routing id, `name/incarnation`."""

    sender: str
    message: BrokerMessage
    frames: tuple[Frame, ...] = ()


class Moment(Struct, frozen=True, gc=False):
    """One event, and what it led to. `now`: seconds of the broker's clock."""

    number: int
    now: float
    event: Event
    frames: tuple[Frame, ...]
    orders: tuple[Order, ...]
    actions: tuple[Action, ...]


class Recording:
    """Reads one journal's folder. `state` is that after the last moment that was yielded."""

    def __init__(self, journal: Path, policies: Policies = DEFAULT, start: Snapshot | None = None,
                 progress: Progress | None = None) -> None:  # fmt: skip
        self._journal = journal
        self._policies = policies
        self._start = start
        self._way = Way(sizes_of(journal), progress)
        self.dialect = Dialect(journal.parent)
        self.state: State | None = None
        self.met: dict[str, str] = {}
        """Roles of the clients that were there when reading began with a checkpoint, by sender; their hellos are gone."""
        self.trained = 0
        """Steps that were committed then."""
        self.note = ""
        """Why reading ended before the journal's end, or began after its beginning; empty otherwise."""
        self.damages: list[str] = []
        """What else is not as it was written; no event that is known of is lost with it."""

    def moments(self) -> Iterator[Moment]:
        """All of them. Raises JournalError where there is no state to begin with."""
        arena = Arena()
        if self._start is not None:
            self._go_on_from(_decode_state(self._start.state), contents_of(self._start.arena), arena)
        for entry in self._entries():
            event = self.dialect.now(decode_event(entry.event))
            if isinstance(event, Started):
                self.state = begin(event, entry.now)
                yield Moment(entry.number, entry.now, event, (), (), ())
                continue
            if self.state is None:
                self._adopt(entry, arena)
            assert self.state is not None
            if (stranger := unknown_lease(self.state, event)) is not None:
                self.note = f"entry {entry.number} {stranger}; nothing behind it is played"
                return
            yield self._moment(self.state, entry, event, arena)

    def _entries(self) -> Iterator[Entry]:
        first = self._start.number if self._start is not None else 0
        scan = Scan(self._journal, Position(*self._start.position) if self._start is not None else None)
        for found in scan:
            if not isinstance(found, Damage):
                self._way.say(found.position.segment, found.position.offset)
                if found.number >= first:
                    yield found
            elif found.last >= found.first:
                self.note = str(found)
                return
            else:
                self.damages.append(str(found))
        if scan.torn_bytes:
            self.damages.append(f"the journal's last {scan.torn_bytes:,} bytes are no whole commit")

    def told(self) -> Iterator[str]:
        """Lines for a person: what of the journal was not read, or not as it was written."""
        yield from self.damages[:SHOWN_DAMAGES]
        if len(self.damages) > SHOWN_DAMAGES:
            yield f"and {len(self.damages) - SHOWN_DAMAGES} more places that are damaged"
        if self.note:
            yield self.note

    def _adopt(self, entry: Entry, arena: Arena) -> None:
        for found in checkpoints.valid(self._journal):
            if found.number == entry.number:
                self._go_on_from(_decode_state(found.state), found.arena, arena)
                self.note = f"the entries before {entry.number} are gone; it begins with the broker's checkpoint there"
                return
        why = f"the run's start is gone, and no checkpoint stands at entry {entry.number}"
        raise JournalError(f"{self._journal}: no state to begin with: {why}")

    def _go_on_from(self, state: State, known: Contents, arena: Arena) -> None:
        self.state = state
        self.met = {f"{client.name}/{client.incarnation}": client.role for client in state.clients.values() if client.ready}
        self.trained = state.trainer.step
        arena.load(known)
        arena.fetch(self._entry_at)

    def _entry_at(self, position: Position) -> Entry:
        return entry_at(self._journal, position)

    def _moment(self, state: State, entry: Entry, event: Event, arena: Arena) -> Moment:
        """Frames are looked up when their message is ordered: a later action may forget them."""
        orders: list[Order] = []
        puts, frames = puts_of(event), entry.frames if entry.frames_whole else None
        actions = step(state, event, entry.now, self._policies)
        for action in actions:
            if isinstance(action, Send):
                sender = f"{action.client}/{state.clients[action.client].incarnation}"
                parts = tuple(frame for part in action.attach for frame in _frames(arena, part))
                orders.append(Order(sender, self._readable(action.message), parts))
            elif isinstance(action, Reply) and isinstance(event, Received):
                orders.append(Order(event.sender, action.message))
            else:
                arena.take(action, puts, frames, entry.position)
        return Moment(entry.number, entry.now, event, entry.frames, tuple(orders), tuple(actions))

    def _readable(self, message: BrokerMessage) -> BrokerMessage:
        """Under this version's fingerprints: the stages would not look at the record otherwise."""
        if not self.dialect.changed:
            return message
        if isinstance(message, Deliver | InstallOrder):
            return replace(message, header=self.dialect.stamped(message.header))
        if isinstance(message, Plan):
            return replace(message, samples=tuple(self.dialect.stamped(header) for header in message.samples))
        return message


def _frames(arena: Arena, part: Attachment) -> tuple[Frame, ...]:
    """Frames that are damaged on disk are left out: who is handed such a record cannot read it, as live."""
    kept = arena.frames_kept(part.message)
    return kept[1:2] if part.tokens_only else kept
