"""Indexing: one pass over what is not yet indexed, through the real core, with rows coming out as they are found.

Reads the journal as a reader does: no lock, nothing written into segments. Promises: stopped anywhere, what was saved is valid and the
next pass goes on from there; a torn tail is not indexed and is looked at again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from broker.core.state import State
from broker.journal.format import BLOCK, Entry, Position
from broker.journal.reading import Damage, Scan
from tools.records import rows as lean
from tools.records.folding import Fold, Folded, encode_state, state_of
from tools.records.index import FailureRow, Index, Segment, Snapshot, StepRow, Totals, head_of, state_name
from tools.records.lives import Fact
from tools.records.looking import Progress
from tools.records.rows import DAMAGED, MADE, REFUSED, ROW, UNSURE, Names

BLOCK_ROWS = 2048
"""Rows that are handed on at once: a tenth of a second's work."""
SNAPSHOT_ENTRIES = 20_000
"""Entries between two kept states: folding them takes about a second."""


class Indexing:
    """One pass. `torn_bytes` after its end: what the last segment ends with and is no whole commit."""

    def __init__(self, index: Index, progress: Progress | None = None) -> None:
        self._index, self._meta = index, index.meta
        self._progress = progress
        self._queues, self._clients = Names(self._meta.queues, 255), Names(self._meta.clients, 65_535)
        self._rows: list[tuple[object, ...]] = []
        self._segment: Segment | None = self._meta.segments[-1] if self._meta.segments else None
        self._kept_at = self._meta.next_number
        self.torn_bytes = 0

    def run(self) -> Generator[np.ndarray, None, None]:
        """Blocks of rows, as far as there are new ones."""
        meta = self._meta
        self._fold = Fold(self._index.journal, self._state(), meta.note)
        scan = Scan(self._index.journal, Position(*meta.end), meta.next_number, want_frames=False)
        batch: Position | None = None
        total, before = self._index.total_bytes, self._index.bytes_before()
        for item in scan:
            if isinstance(item, Damage):
                self._damage(item)
                continue
            if scan.end != batch and scan.end is not None:
                batch = scan.end
                yield from self._boundary(item, batch)
                if self._progress is not None:
                    self._progress(before.get(batch.segment, 0) + batch.offset, total)
            self._entry(item)
            if len(self._rows) >= BLOCK_ROWS:
                yield self._flush()
        self.torn_bytes = scan.torn_bytes
        yield from self._finish(scan)

    def _state(self) -> State | None:
        found = self._index.snapshot(self._meta.state) if self._meta.state else None
        return state_of(found.state) if found is not None else None

    # --- boundaries -----------------------------------------------------------------------------------------------------------

    def _boundary(self, entry: Entry, batch: Position) -> Iterator[np.ndarray]:
        """A commit begins: a new segment, or time to save."""
        if self._segment is None or self._segment.index != batch.segment:
            if self._rows:
                yield self._flush()
            path = self._index.journal / f"{batch.segment:08d}.log"
            self._segment = Segment(index=batch.segment, head=head_of(path), first=entry.number, began=entry.now)
            self._meta.segments.append(self._segment)
        self._segment.until = batch.offset
        if entry.number - self._kept_at >= SNAPSHOT_ENTRIES:
            if self._rows:
                yield self._flush()
            self._save(entry.number, batch, kept=True)

    def _finish(self, scan: Scan) -> Iterator[np.ndarray]:
        if self._rows:
            yield self._flush()
        if scan.end is not None:
            if self._segment is not None and self._segment.index == scan.end.segment:
                self._segment.until = scan.end.offset
            self._save(scan.expected or 0, scan.end, kept=False)

    def _save(self, number: int, position: Position, *, kept: bool) -> None:
        meta, name = self._meta, state_name(number) if kept else "tail.state"
        meta.next_number, meta.end, meta.note = number, (position.segment, max(position.offset, BLOCK)), self._fold.note
        meta.state = meta.phase = ""
        if self._fold.lives is not None:
            self._index.keep(name, Snapshot(number, meta.end, encode_state(self._fold.lives.state)))
            meta.state, meta.phase = name, self._fold.lives.state.phase.value
            if kept:
                meta.snapshots.append(number)
        self._kept_at = number if kept else self._kept_at
        self._index.save()

    # --- one entry --------------------------------------------------------------------------------------------------------------

    def _damage(self, damage: Damage) -> None:
        if str(damage) not in self._meta.damages:
            self._meta.damages.append(str(damage))
        if damage.last >= damage.first:
            gap = (damage.first, damage.last)
            self._meta.missing.append(gap)
            if damage.dropped:
                self._meta.dropped.append(gap)
            self._fold.lose(f"entries {damage.first} to {damage.last} are gone")

    def _entry(self, entry: Entry) -> None:
        event = lean.read_event(entry.event)
        kind = event.message.type if event.message is not None and event.message.type else event.type
        if not kind:
            self._meta.unreadable += 1
        self._meta.events[kind or "?"] = self._meta.events.get(kind or "?", 0) + 1
        assert self._segment is not None
        self._segment.entries += 1
        self._segment.ended = entry.now
        folded = self._fold.take(entry)
        if event.message is not None and event.message.puts:
            self._puts(entry, event, folded)
        if folded is not None:
            self._made = len(event.message.puts) if event.message is not None else 0
            for fact in folded.facts:
                self._fact(fact, entry)

    def _puts(self, entry: Entry, event: lean.LeanEvent, folded: Folded | None) -> None:
        assert event.message is not None
        flags = UNSURE if folded is None else REFUSED if any(fact.kind == "refused" for fact in folded.facts) else 0
        flags |= 0 if entry.frames_whole else DAMAGED
        client, where = self._clients.number(event.sender.rpartition("/")[0]), (entry.position.segment, entry.position.offset)
        for part, (first, size, header) in enumerate(lean.placed_frames(event.message.puts)):
            queue = self._queues.number(header.queue)
            self._rows.append(lean.row_of(header, entry.number, entry.now, where, part, first, queue, flags, client, size))

    def _fact(self, fact: Fact, entry: Entry) -> None:
        if fact.kind == "issued":
            self._issued(fact, entry)
        elif fact.kind == "planned":
            self._planned(fact)
        elif fact.kind == "try_failed":
            self._failed(fact, fact.detail)
        elif fact.kind == "ended":
            ending = fact.detail.partition(":")[0].partition("(")[0] if fact.detail.startswith("trained") else fact.detail.partition(":")[0]
            self._meta.endings[ending] = self._meta.endings.get(ending, 0) + 1
            if fact.detail.startswith("failed"):
                self._failed(fact, fact.detail, final=True)

    def _issued(self, fact: Fact, entry: Entry) -> None:
        header = lean.LeanHeader(queue="tickets", ticket=fact.ticket, group=fact.group, member=fact.member, purpose=fact.detail)
        where, part = (entry.position.segment, entry.position.offset), self._made
        self._made += 1
        row = lean.row_of(
            header, entry.number, entry.now, where, part, 0, self._queues.number("tickets"), MADE, self._clients.number("broker"), 0
        )
        self._rows.append(row)

    def _planned(self, fact: Fact) -> None:
        assert self._fold.lives is not None
        plan = self._fold.lives.state.steps.get(fact.step or 0)
        if plan is not None:
            groups = tuple((group.group, group.rewards) for group in plan.rewards)
            self._meta.steps.append(StepRow(step=plan.step, number=fact.number, at=fact.at, oldest_allowed=plan.oldest_allowed,
                                            tickets=plan.tickets, groups=groups))  # fmt: skip

    def _failed(self, fact: Fact, reason: str, *, final: bool = False) -> None:
        of = {name: getattr(fact, name) for name in ("number", "at", "ticket", "attempt", "group", "member", "queue", "client")}
        self._meta.failures.append(FailureRow(**of, reason=reason, final=final))

    def _flush(self) -> np.ndarray:
        rows = np.array(self._rows, ROW)
        self._rows.clear()
        assert self._segment is not None
        self._index.add(self._segment, rows)
        self._count(rows)
        return rows

    def _count(self, rows: np.ndarray) -> None:
        for queue in np.unique(rows["queue"]):
            of = rows[rows["queue"] == queue]
            taken = of[of["flags"] & REFUSED == 0]
            totals = self._meta.totals.setdefault(self._queues.names[int(queue)], Totals(first=float(of["at"][0])))
            totals.records += len(taken)
            totals.refused += len(of) - len(taken)
            totals.bytes += int(taken["bytes"].sum(dtype=np.int64))
            totals.last = float(of["at"][-1])
