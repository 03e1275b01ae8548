"""Looking into an opened run: rows that stream, records, conversations. Joins index, journal and schemas; prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from schemas.errors import ConfigError, JournalError
from tools.records.index import Index, StepRow
from tools.records.opening import Run
from tools.records.rows import MADE, REFUSED
from tools.records.selection import Selection, mask

if TYPE_CHECKING:  # loaded where they are used: a list from an index is there before core and codec would be
    from tools.records.episode import Conversation, Raw
    from tools.records.record import Opened

Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all."""


class Look:
    """A run with its index. `torn_bytes`: known after the first full pass."""

    def __init__(self, run: Run, progress: Progress | None = None) -> None:
        self.run = run
        self.index = Index(run.journal)
        self.torn_bytes = 0
        self._progress = progress
        self._is_current = False

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.close()

    def progress(self, done: int, total: int) -> None:
        """Says how far a long look is."""
        if self._progress is not None:
            self._progress(done, total)

    def catch_up(self) -> None:
        """Indexes what is new."""
        for _ in self._new():
            pass

    def _new(self) -> Iterator[np.ndarray]:
        self._is_current = self._is_current or self.index.is_current
        if not self._is_current:
            from tools.records.indexing import Indexing

            indexing = Indexing(self.index, self._progress)
            try:
                yield from indexing.run()
            except FileNotFoundError as error:
                raise JournalError(f"{error.filename}: the quota dropped it while it was read; run the command again") from error
            self.torn_bytes = indexing.torn_bytes
            self._is_current = True

    def rows(self, wanted: Selection) -> Iterator[np.ndarray]:
        """Blocks of matching rows, oldest first: those indexed before at once, new ones as they are found."""
        if wanted.step is not None:
            self.catch_up()  # what a step trained is known only once it is planned
        for block in [*self.index.stored()]:
            yield block[mask(block, wanted, self.index.meta)]
        for block in self._new():
            yield block[mask(block, wanted, self.index.meta)]

    def all_rows(self, wanted: Selection) -> np.ndarray:
        """All matching rows in one array."""
        found = list(self.rows(wanted))
        return np.concatenate(found) if found else np.empty(0)

    def row(self, number: int, part: int) -> np.ndarray:
        """The row of one record. Raises ConfigError where there is none."""
        self.catch_up()
        for block in self.index.stored():
            at = int(np.searchsorted(block["number"], number))
            while at < len(block) and block["number"][at] == number:
                if block["part"][at] == part:
                    return block[at]
                at += 1
        raise ConfigError(f"record {number}.{part}: there is none; `tidemill inspect RUN --from 0` lists all, by these numbers")

    def record(self, number: int, part: int) -> Opened:
        """One record in full. Raises ConfigError or JournalError."""
        from tools.records.record import open_record
        from tools.records.telling import made_record

        row = self.row(number, part)
        return made_record(self, row) if row["flags"] & MADE else open_record(self.run.journal, row)

    # --- conversations ----------------------------------------------------------------------------------------------------------

    def conversation(self, ticket: int, attempt: int | None) -> Conversation:
        """A session. Raises ConfigError where nothing of it is recorded."""
        rows = self.all_rows(Selection(session=(ticket, attempt)))
        rows = rows[rows["flags"] & (REFUSED | MADE) == 0] if len(rows) else rows
        if not len(rows):
            raise ConfigError(f"session {ticket}{f'.{attempt}' if attempt else ''}: nothing of it is recorded here")
        last = attempt if attempt is not None else int(rows["attempt"].max())
        rows = rows[rows["attempt"] == last]
        return self._conversation(ticket, last, rows)

    def _conversation(self, ticket: int, attempt: int, rows: np.ndarray) -> Conversation:
        from tools.records import episode
        from tools.records.words import words_of

        by_queue = {queue: [row for row in rows if self.index.meta.queues[int(row["queue"])] == queue] for queue in self.index.meta.queues}
        sample = self._newest([*by_queue.get("scored", ()), *by_queue.get("samples", ())])
        whole = self._newest(by_queue.get("episodes", []))
        remarks: list[str] = []
        if whole is not None and "tokens" in whole.arrays:
            raw, source = episode.of_episode(whole), "episode"
        else:
            raw, source = self._from_messages([*by_queue.get("turns", ()), *by_queue.get("actions", ())], remarks), "turns and actions"
        plan = self._plan(ticket)
        group = int(rows["group"][0])
        reward = sample.header.get("reward") if sample is not None else None
        advantage = episode.advantage_in(plan, group, reward)
        return episode.Conversation(
            ticket=ticket, attempt=attempt, group=group, source=source, task=whole.body.get("task") if whole else None,
            outcome=whole.body.get("outcome") if whole else None, reward=reward,
            reward_parts=sample.body.get("reward_parts", {}) if sample else {}, step=plan.step if plan else None,
            truncated=bool(whole and whole.header.get("truncated")), remarks=[*remarks, *(whole.remarks if whole else ())],
            pieces=episode.pieces_of(raw, words_of(self.run), advantage, plan.oldest_allowed if plan else 0),
        )  # fmt: skip

    def _newest(self, rows: list[np.ndarray]) -> Opened | None:
        from tools.records.record import open_record

        try:
            return open_record(self.run.journal, max(rows, key=lambda row: int(row["number"]))) if rows else None
        except JournalError:
            return None

    def _from_messages(self, rows: list[np.ndarray], remarks: list[str]) -> Raw:
        from tools.records.episode import of_messages
        from tools.records.record import open_record

        records = []
        for row in sorted(rows, key=lambda row: int(row["number"])):
            try:
                records.append(open_record(self.run.journal, row))
            except JournalError as error:
                remarks.append(str(error))
        remarks += [remark for record in records for remark in record.remarks]
        return of_messages(records)

    def _plan(self, ticket: int) -> StepRow | None:
        return next((plan for plan in reversed(self.index.meta.steps) if ticket in plan.tickets), None)
