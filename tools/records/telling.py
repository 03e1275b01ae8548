"""Telling a story: the journal is folded through the real core, from the nearest kept state to the end of the life in question.

Promises: what is told is what the broker did, by its own code; where the fold is not possible, the puts that are recorded are told instead,
and `note` says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broker.core.actions import Store
from broker.journal import Entry, Position
from broker.journal.reading import Damage, Scan
from schemas.edges import Role
from schemas.errors import ConfigError, JournalError
from tools.records.folding import Fold, Folded, encode_state, state_of
from tools.records.index import Snapshot
from tools.records.lives import Fact
from tools.records.looking import Look
from tools.records.record import Opened, made
from tools.records.rows import REFUSED
from tools.records.selection import Selection, tickets_of_step
from tools.records.story import Collector, Scope, Subject


class Story:
    """`facts` in order; `note`: what it is not sure of, empty where it is sure."""

    def __init__(self, scope: Scope, facts: list[Fact], note: str) -> None:
        self.scope, self.facts, self.note = scope, facts, note


def tell(look: Look, subject: Subject) -> Story:
    """Raises ConfigError where nothing of it is recorded."""
    scope = scope_of(look, subject)
    collector = Collector(scope)
    walk = Walk(look, scope.first, want_frames=False)
    for entry, folded in walk:
        if folded is not None:
            for fact in folded.facts:
                collector.take(fact)
        if collector.is_over or (entry.number > scope.last and _is_retired(walk.fold, subject)):
            break
    if collector.facts:
        return Story(scope, collector.facts, walk.fold.note)
    return Story(scope, list(_of_rows(look, scope)), walk.fold.note or "the fold says nothing of it")


def _is_retired(fold: Fold, subject: Subject) -> bool:
    """A version that nobody has, is offered, plays with or will be given: its life is over."""
    if subject.kind != "version" or fold.lives is None:
        return False
    state, number = fold.lives.state, subject.id
    if number in state.installs or number in state.steps or state.trainer.step <= number:
        return False
    clients = (number in (client.installed, client.offered) for client in state.clients.values() if client.role != Role.REFERENCE)
    return not any(clients) and not any(ticket.version == number for ticket in state.tickets.values())


def made_record(look: Look, row: np.ndarray) -> Opened:
    """A ticket, as the core made it. Raises JournalError where the entry cannot be folded."""
    number, part = int(row["number"]), int(row["part"])
    for entry, folded in Walk(look, number, want_frames=False):
        if entry.number == number and folded is not None:
            stores = {action.header.ticket: action for action in folded.actions if isinstance(action, Store)}
            store = stores[int(row["ticket"])]
            return made(store.header, store.record, number, part, entry.now)
        if entry.number >= number:
            break
    raise JournalError(f"record {number}.{part}: made by the broker in an entry that cannot be folded")


def scope_of(look: Look, subject: Subject) -> Scope:
    """Tickets and groups of a subject, and the first entry that speaks of it. Raises ConfigError where none does."""
    look.catch_up()
    rows = look.all_rows(selection_of(subject if subject.attempt is None else Subject(kind="ticket", id=subject.id)))
    tickets = tickets_of_step(look.index.meta, subject.id) if subject.kind == "step" else []
    if not len(rows) and not tickets:
        raise ConfigError(f"{subject}: nothing of it is recorded here")
    if subject.attempt is not None and subject.attempt not in rows["attempt"]:
        raise ConfigError(f"{subject}: ticket {subject.id} has no such attempt; its sessions: {_attempts(rows) or 'none'}")
    if subject.kind in ("ticket", "session", "group"):
        tickets = sorted({int(ticket) for ticket in rows["ticket"] if ticket >= 0})
    first, last = int(rows["number"].min()), int(rows["number"].max())
    groups = frozenset(int(group) for group in rows["group"] if group >= 0)
    if subject.kind == "version":
        planned = [row.number for row in look.index.meta.steps if row.step == subject.id]
        return Scope(subject=subject, first=min([first, *planned]), last=last)
    return Scope(subject=subject, tickets=frozenset(tickets), groups=groups, first=first, last=last)


def _attempts(rows: np.ndarray) -> str:
    return ", ".join(str(attempt) for attempt in np.unique(rows["attempt"]) if attempt >= 0)


def selection_of(subject: Subject) -> Selection:
    """The records of a subject."""
    if subject.kind in ("ticket", "session"):
        return Selection(session=(subject.id, subject.attempt))
    if subject.kind == "group":
        return Selection(group=subject.id)
    return Selection(step=subject.id) if subject.kind == "step" else Selection(version=subject.id)


def _of_rows(look: Look, scope: Scope) -> Iterator[Fact]:
    """What the index knows without a fold."""
    for block in look.rows(selection_of(scope.subject)):
        for row in block:
            yield _fact_of(look, row)


def _fact_of(look: Look, row: np.ndarray) -> Fact:
    meta, kind = look.index.meta, "refused" if int(row["flags"]) & REFUSED else "put"
    known = {name: int(row[name]) for name in ("ticket", "attempt", "group", "member", "turn", "tokens") if row[name] >= 0}
    return Fact(number=int(row["number"]), at=float(row["at"]), kind=kind, queue=meta.queues[int(row["queue"])],
                client=meta.clients[int(row["client"])], reward=None if np.isnan(row["reward"]) else float(row["reward"]), **known)  # type: ignore[arg-type]  # fmt: skip


def usage(look: Look, version: int) -> list[tuple[str, int]]:
    """Records with tokens of a version, by queue."""
    rows = look.all_rows(Selection(version=version))
    names = look.index.meta.queues
    return [(names[int(queue)], int((rows["queue"] == queue).sum())) for queue in np.unique(rows["queue"])]


class Walk:
    """Entries from the nearest state at or before entry `first` on, each with what it led to (None where it cannot be folded)."""

    def __init__(self, look: Look, first: int, *, want_frames: bool) -> None:
        self._look = look
        self._journal = look.run.journal
        self.start: Snapshot | None = look.index.snapshot_before(first)
        state = state_of(self.start.state) if self.start is not None else None
        self.fold = Fold(self._journal, state)
        self._want_frames = want_frames
        self.stop_before: int | None = None
        """Entry before which the state is put down in `before` (msgpack); None where there is none."""
        self.before: bytes | None = None

    def __iter__(self) -> Iterator[tuple[Entry, Folded | None]]:
        scan, batch = self.scan(), None
        total, before = self._look.index.total_bytes, self._look.index.bytes_before()
        for item in scan:
            if scan.end is not None and scan.end != batch:
                batch = scan.end
                self._look.progress(before.get(batch.segment, 0) + batch.offset, total)
            if isinstance(item, Damage):
                if item.last >= item.first:
                    self.fold.lose(f"entries {item.first} to {item.last} are gone")
            else:
                if item.number == self.stop_before:
                    self.fold.meet(item.number)
                    self.before = encode_state(self.fold.lives.state) if self.fold.lives is not None else None
                yield item, self.fold.take(item)

    def scan(self) -> Scan:
        """The bare entries."""
        start = Position(*self.start.position) if self.start is not None else None
        return Scan(self._journal, start, self.start.number if self.start is not None else 0, want_frames=self._want_frames)
