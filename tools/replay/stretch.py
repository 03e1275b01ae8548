"""Which part of a recording is read: from a kept state before what is wanted, to where nothing of it can follow.

Of a large journal the index says where that is; what a process had been told before is looked up: its hello, the version it had in use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from broker.core.events import Received, decode_event, puts_of
from broker.core.state import State
from broker.journal import Entry, Position
from broker.journal.reading import entry_at
from schemas.edges import Role
from schemas.errors import ConfigError, JournalError
from schemas.messages import Hello, InstallOrder
from tools.records.folding import state_of
from tools.records.looking import Look
from tools.records.selection import Selection
from tools.records.story import Subject
from tools.records.tables import Snapshot
from tools.records.telling import scope_of
from tools.replay.recording import Order
from tools.replay.selection import Wanted


class Stretch(Struct, kw_only=True):
    """`start`: None for the journal's beginning. `last`: the last entry that is known to matter, None for the journal's end."""

    start: Snapshot | None = None
    last: int | None = None
    tickets: frozenset[int] = frozenset()
    """Whose endings are waited for behind `last`."""
    first_step: int | None = None
    """actor-train: the first step that is wanted."""
    hellos: dict[str, Hello] = field(default_factory=dict)
    """By sender, of those that had said theirs before."""
    standing: list[Order] = field(default_factory=list)
    """Installs in force at the start."""

    def is_over(self, number: int, state: State | None) -> bool:
        """Nothing that is wanted stands in entry `number` or behind it."""
        if self.last is None or number <= self.last:
            return False
        return state is None or not any(ticket in state.tickets for ticket in self.tickets)


def stretch_of(look: Look, role: Role, wanted: Wanted, checkpoints: Sequence[int]) -> Stretch:
    """Raises ConfigError where nothing of what is wanted is recorded."""
    if wanted.is_everything:
        return Stretch()
    look.scan()
    found = _of_steps(look, wanted, checkpoints) if role is Role.ACTOR_TRAIN else _of_records(look, wanted)
    if found.start is not None and (state := state_of(found.start.state)) is not None:
        found.hellos = dict(_hellos(look, state, found.start))
        found.standing = _installs(look, state, found.start.number) if role in (Role.ROLLOUT, Role.REFERENCE) else []
    return found


# --- where it begins and ends --------------------------------------------------------------------------------------------------


def _of_records(look: Look, wanted: Wanted) -> Stretch:
    if not wanted.kind:
        first, last = _in_time(look, wanted)
        return Stretch(start=look.state_before(first), last=last)
    try:
        scope = scope_of(look, Subject(kind=wanted.kind, id=wanted.number, attempt=wanted.attempt))
    except ConfigError as error:
        raise ConfigError(f"--only: {error}") from error
    return Stretch(start=look.state_before(scope.first), last=scope.last, tickets=frozenset(scope.tickets))


def _in_time(look: Look, wanted: Wanted) -> tuple[int, int | None]:
    """First and last entry of the time that is wanted; what is ordered then may be answered up to a little later."""
    first, last = 0, None
    if wanted.begin is not None:
        earlier = look.all_rows(Selection(begin=wanted.begin - 60.0, end=wanted.begin))
        first = int(earlier["number"].max(initial=0))
    if wanted.end is not None:
        later = look.all_rows(Selection(begin=wanted.end))
        last = int(later["number"].min()) if len(later) else None
    return first, last


def _of_steps(look: Look, wanted: Wanted, checkpoints: Sequence[int]) -> Stretch:
    """From the plan behind the newest checkpoint below what is wanted, to the version behind it."""
    rows = look.all_rows(Selection(queue="versions"))
    if wanted.kind not in ("step", "version", ""):
        raise ConfigError(f"--only {wanted.kind}:{wanted.number}: a trainer is given steps; say step:2, or --from and --to")
    steps = [wanted.number] if wanted.kind else sorted({int(row["newest"]) for row in rows if wanted.in_time(float(row["at"]))})
    if not steps:
        raise ConfigError("no step was trained in that time")
    before = max((step for step in checkpoints if step < steps[0]), default=0)
    first = rows["number"][rows["newest"] == before]
    behind = rows["number"][rows["newest"] > steps[-1]]
    last = rows["number"][rows["newest"] == steps[-1]]
    start = look.state_before(int(first.min())) if before and len(first) else None
    after = behind[behind > last.max()] if len(last) else behind[:0]
    return Stretch(start=start, last=int(after.min()) if len(after) else None, first_step=steps[0])


# --- what was told before ------------------------------------------------------------------------------------------------------


def _hellos(look: Look, state: State, start: Snapshot) -> list[tuple[str, Hello]]:
    """The newest of each process that is there."""
    senders = {f"{client.name}/{client.incarnation}" for client in state.clients.values() if client.ready}
    found: dict[str, Position] = {}
    for segment in look.index.meta.segments:
        for sender, offset in segment.hellos:
            if sender in senders and (segment.index, offset) < start.position:
                found[sender] = Position(segment.index, offset)
    read = [(sender, _hello(look, position)) for sender, position in found.items()]
    return [(sender, hello) for sender, hello in read if hello is not None]


def _hello(look: Look, position: Position) -> Hello | None:
    entry = _entry(look, position)
    event = decode_event(entry.event) if entry is not None else None
    return event.message if isinstance(event, Received) and isinstance(event.message, Hello) else None


def _installs(look: Look, state: State, before: int) -> list[Order]:
    """The order by which each process came to what it has in use."""
    rows = look.all_rows(Selection(queue="installs"))
    found = []
    for client in state.clients.values():
        of = rows[(rows["newest"] == client.installed) & (rows["number"] < before)] if client.installed is not None else rows[:0]
        entry = _entry(look, Position(int(of["segment"][-1]), int(of["offset"][-1]))) if len(of) else None
        if entry is not None and client.ready:
            found.append(_install(entry, of[-1], f"{client.name}/{client.incarnation}"))
    return found


def _install(entry: Entry, row: np.ndarray, sender: str) -> Order:
    header = puts_of(decode_event(entry.event))[int(row["part"])]
    start = int(row["first_frame"])
    return Order(sender, InstallOrder(header=header), tuple(entry.frames[start : start + len(header.frames)]))


def _entry(look: Look, position: Position) -> Entry | None:
    try:
        return entry_at(look.run.journal, position)
    except JournalError:
        return None
