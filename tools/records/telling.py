"""Telling a story: the journal is folded through the real core, from the nearest kept state to the end of the life in question.

Promises: what is told is what the broker did, by its own code; where the fold is not possible, the puts that are recorded are told instead,
and `note` says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broker.core.actions import Store
from broker.journal import Entry, Position
from broker.journal.format import BLOCK
from broker.journal.reading import Damage, Scan
from schemas.edges import Role
from schemas.errors import ConfigError, JournalError
from tools.records.folding import Fold, Folded, encode_state, fold_from, state_of
from tools.records.lives import Fact
from tools.records.looking import Look
from tools.records.progress import Way
from tools.records.record import Opened, made
from tools.records.rows import REFUSED
from tools.records.selection import Selection, tickets_of_step
from tools.records.starting import already_since
from tools.records.story import Collector, Scope, Subject
from tools.records.tables import StepRow


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
        if collector.is_over or (entry.number > scope.last and (_is_retired(walk.fold, subject) or walk.fold.is_lost(entry.number))):
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
    look.scan()
    wanted = selection_of(subject if subject.attempt is None else Subject(kind="ticket", id=subject.id))
    rows = look.all_rows(wanted)
    tickets = tickets_of_step(look.index.meta, subject.id) if subject.kind == "step" else []
    if not len(rows) and not tickets:
        look.follow()  # a ticket that nobody played has no record but what the broker made
        rows = look.all_rows(wanted)
    if not len(rows) and not tickets:
        raise ConfigError(f"{subject}: nothing of it is recorded here")
    if subject.attempt is not None and subject.attempt not in rows["attempt"]:
        raise ConfigError(f"{subject}: ticket {subject.id} has no such attempt; its sessions: {_attempts(rows) or 'none'}")
    if subject.kind in ("ticket", "session", "group"):
        tickets = sorted({int(ticket) for ticket in rows["ticket"] if ticket >= 0})
    last = int(rows["number"].max())
    if subject.kind == "version":
        return Scope(subject=subject, first=_beginning(look, rows, frozenset(), subject.id), last=last)
    groups = frozenset(int(group) for group in rows["group"] if group >= 0)
    first = _beginning(look, rows, frozenset(tickets), None)
    return Scope(subject=subject, tickets=set(tickets), groups=groups, first=first, last=last)


def _beginning(look: Look, rows: np.ndarray, tickets: frozenset[int], step: int | None) -> int:
    """The first entry of these rows, or that in which what they are of came to be: known to the broker before a record of it was put."""
    first = int(rows["number"].min())
    while (start := look.state_before(first)) is not None:
        state = state_of(start.state)
        since = already_since(state, tickets, step) if state is not None else None
        if since is None:
            break
        first = min(_number_at(look, since), start.number - 1)
    return first


def _number_at(look: Look, at: float) -> int:
    """Of the last record before that time."""
    earlier = look.all_rows(Selection(begin=at - 60.0, end=at))
    return int(earlier["number"][earlier["at"] < at].max(initial=0))


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


def plan_of(look: Look, ticket: int, last: int) -> StepRow | None:
    """The plan that a ticket stands in, whose last record is in entry `last`; None where it came into none."""
    known = [plan for plan in look.index.meta.followed.steps if ticket in plan.tickets]
    if known:
        return known[-1]
    found: StepRow | None = None
    walk = Walk(look, last, want_frames=False)
    for entry, folded in walk:
        for fact in folded.facts if folded is not None else ():
            if fact.kind == "planned" and ticket in fact.tickets and walk.fold.lives is not None:
                found = walk.fold.lives.plan(fact.step or 0, entry.number, entry.now)
            elif (fact.kind == "ended" and fact.ticket == ticket) or (fact.kind == "committed" and ticket in fact.tickets):
                return found
    return found


class Walk:
    """Entries from the nearest state at or before entry `first` on, each with what it led to (None where it cannot be folded)."""

    def __init__(self, look: Look, first: int, *, want_frames: bool) -> None:
        self._look = look
        self._journal = look.run.journal
        self._dark = look.dark_from(first)
        self.start = look.state_before(first) if self._dark is None else None
        self.fold = fold_from(self._journal, self.start, look.index.meta.followed.note if self._dark is not None else "")
        self._want_frames = want_frames
        self.stop_before: int | None = None
        """Entry before which the state is put down in `before` (msgpack); None where there is none."""
        self.before: bytes | None = None

    def __iter__(self) -> Iterator[tuple[Entry, Folded | None]]:
        scan, batch, way = self.scan(), None, Way(self._look.index.sizes(), self._look.progress)
        for item in scan:
            if scan.end is not None and scan.end != batch:
                batch = scan.end
                way.say(batch.segment, batch.offset)
            if isinstance(item, Damage):
                if item.last >= item.first:
                    self.fold.lose(f"entries {item.first} to {item.last} are gone")
            elif self.start is None or item.number >= self.start.number:
                if item.number == self.stop_before:
                    self.fold.meet(item.number)
                    self.before = encode_state(self.fold.lives.state) if self.fold.lives is not None else None
                yield item, self.fold.take(item)

    def scan(self) -> Scan:
        """The bare entries, from the commit on in which the start lies."""
        if self._dark is not None:
            return Scan(self._journal, Position(self._dark, BLOCK), want_frames=self._want_frames)
        start = Position(*self.start.position) if self.start is not None else None
        return Scan(self._journal, start, None if self.start is not None else 0, want_frames=self._want_frames)
