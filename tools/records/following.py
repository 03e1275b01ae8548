"""Following: the run's events are stepped through the broker's real core again, and what it made of them is kept beside the rows.

Costs ten times what a scan costs, so it goes only as far as a question needs it. Promises: stopped anywhere, what was saved is valid and
the next pass goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from broker.journal.format import BLOCK, Entry, Position
from broker.journal.reading import Damage, Scan
from tools.records import rows as lean
from tools.records.folding import encode_state, fold_from
from tools.records.index import Index, state_name
from tools.records.lives import Fact
from tools.records.progress import FOLLOWING, Progress, Way
from tools.records.rows import MADE, REFUSED, Names, pack_judged
from tools.records.tables import FailureRow, Followed, Snapshot

SNAPSHOT_ENTRIES = 20_000
"""Entries between two kept states: folding them takes about a second."""


class Following:
    """One pass, from where the last one ended. Failures are yielded as they are found."""

    def __init__(self, index: Index, progress: Progress | None = None) -> None:
        self._index, self._progress = index, progress
        self._queues, self._clients = Names(index.meta.queues, lean.QUEUES_MOST), Names(index.meta.clients, lean.CLIENTS_MOST)
        self._known = _copy(index.meta.followed)
        self._kept_at = self._known.next_number
        self._made: list[bytes] = []
        self._judged: list[bytes] = []
        self._failures: list[FailureRow] = []

    def run(self, upto: int | None = None) -> Iterator[FailureRow]:
        """To the journal's end, or to the commit that entry `upto` stands in."""
        known = self._known
        start = self._index.snapshot(known.state) if known.state else None
        self._fold = fold_from(self._index.journal, start, known.note)
        self._fold.is_brief = True
        scan = Scan(self._index.journal, Position(*known.end), known.next_number, want_frames=False)
        batch, way = None, Way(self._index.sizes(), self._progress, FOLLOWING)
        for item in scan:
            if isinstance(item, Damage):
                if item.last >= item.first:
                    self._fold.lose(f"entries {item.first} to {item.last} are gone")
                continue
            if scan.end != batch and scan.end is not None:
                batch = scan.end
                way.say(batch.segment, batch.offset)
                over = upto is not None and item.number > upto
                if over or item.number - self._kept_at >= SNAPSHOT_ENTRIES:
                    self._save(item.number, batch, kept=True)
                if over:
                    return
            yield from self._entry(item)
        if scan.end is not None:
            self._save(scan.expected or 0, scan.end, kept=False)

    def _save(self, number: int, position: Position, *, kept: bool) -> None:
        index, known, lives = self._index, self._known, self._fold.lives
        index.made.write(known.made, b"".join(self._made))
        index.judged.write(known.judged, b"".join(self._judged))
        known.made, known.judged = known.made + len(self._made), known.judged + len(self._judged)
        self._made.clear()
        self._judged.clear()
        known.next_number, known.end, known.note = number, (position.segment, max(position.offset, BLOCK)), self._fold.note
        known.state = known.phase = ""
        if lives is not None:
            known.state, known.phase = state_name(number) if kept else "tail.state", lives.state.phase.value
            arena = msgspec.msgpack.encode(self._fold.places.contents())
            index.keep(known.state, Snapshot(number, known.end, encode_state(lives.state), arena))
            if kept and index.writes:
                known.snapshots.append(number)
        self._kept_at = number if kept else self._kept_at
        index.meta.followed = known
        self._known = _copy(known)
        index.save()

    # --- one entry ----------------------------------------------------------------------------------------------------------

    def _entry(self, entry: Entry) -> Iterator[FailureRow]:
        folded = self._fold.take(entry)
        if folded is None:
            self._unjudged(entry.number)
            return
        took, flags = lean.NAN, 0
        self._parts = len(folded.puts)
        for fact in folded.facts:
            if fact.kind == "acked":
                took = fact.seconds or 0.0 if took != took else max(took, fact.seconds or 0.0)
            elif fact.kind == "refused":
                flags = REFUSED
            else:
                self._fact(fact, entry)
        if flags:
            for header in folded.puts:
                self._known.refused[header.queue] = self._known.refused.get(header.queue, 0) + 1
        if flags or took == took:
            self._judged.append(pack_judged(entry.number, took, flags))
        yield from self._failures
        self._failures.clear()

    def _unjudged(self, number: int) -> None:
        stretches = self._known.unjudged
        if stretches and stretches[-1][1] == number - 1:
            stretches[-1] = (stretches[-1][0], number)
        else:
            stretches.append((number, number))

    def _fact(self, fact: Fact, entry: Entry) -> None:
        if fact.kind == "issued":
            self._issued(fact, entry)
        elif fact.kind == "planned":
            self._planned(fact)
        elif fact.kind == "try_failed":
            self._failed(fact, fact.detail)
        elif fact.kind == "ended":
            ending = fact.detail.partition(":")[0].partition("(")[0] if fact.detail.startswith("trained") else fact.detail.partition(":")[0]
            self._known.endings[ending] = self._known.endings.get(ending, 0) + 1
            if fact.detail.startswith("failed"):
                self._failed(fact, fact.detail, final=True)

    def _issued(self, fact: Fact, entry: Entry) -> None:
        of = {name: value for name in ("ticket", "group", "member") if (value := getattr(fact, name)) is not None}
        header = lean.LeanHeader(queue="tickets", purpose=fact.detail, **of)
        where, part = (entry.position.segment, entry.position.offset), self._parts
        self._parts += 1
        queue, client = self._queues.number("tickets"), self._clients.number("broker")
        self._made.append(lean.row_of(header, entry.number, entry.now, where, part, 0, queue, MADE, client, 0))

    def _planned(self, fact: Fact) -> None:
        plan = self._fold.lives.plan(fact.step or 0, fact.number, fact.at) if self._fold.lives is not None else None
        if plan is not None:
            self._known.steps.append(plan)

    def _failed(self, fact: Fact, reason: str, *, final: bool = False) -> None:
        names = ("number", "at", "ticket", "attempt", "group", "member", "queue", "client", "seconds")
        of = {name: getattr(fact, name) for name in names}
        row = FailureRow(**of, reason=reason, final=final)
        self._known.failures.append(row)
        self._failures.append(row)


def _copy(known: Followed) -> Followed:
    """What a pass may change until it saves. (Rows of steps and failures are frozen.)"""
    return replace(known, snapshots=[*known.snapshots], refused=dict(known.refused), unjudged=[*known.unjudged], steps=[*known.steps],
                   failures=[*known.failures], endings=dict(known.endings))  # fmt: skip
