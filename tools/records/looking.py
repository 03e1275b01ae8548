"""Looking into an opened run: rows that stream, records, states. Joins index, journal and schemas; prints nothing.

Promises: what is indexed is there at once; of the rest only what the question needs is read. `scan` knows every record by its header;
`follow` knows what the broker made of it, and takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from broker.journal_files import segment_path
from schemas.errors import ConfigError, JournalError
from tools.records.index import Index
from tools.records.opening import Run
from tools.records.progress import Progress
from tools.records.rows import MADE, REFUSED, ROW, UNSURE
from tools.records.selection import Selection, mask, may_hold
from tools.records.tables import FailureRow, Snapshot

if TYPE_CHECKING:  # loaded where they are used: a list from an index is there before core and codec would be
    from tools.records.record import Opened

NEAR_ENTRIES = 20_000
"""So many are folded without keeping what came of it: about a second's work."""

AT_ONCE_BYTES = 4 << 20
"""So much is followed before a list begins: some tenths of a second."""


class Look:
    """A run with its index."""

    def __init__(self, run: Run, progress: Progress | None = None) -> None:
        self.run = run
        self.index = Index(run.journal)
        self.progress = progress
        """Told how far a long look is."""
        self._is_scanned = False
        self.is_followed = False
        """To the journal's end as it was then."""
        self._judged: tuple[int, np.ndarray] = (-1, np.empty(0))

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.close()

    @property
    def torn_bytes(self) -> int:
        """What the journal ends with and is no whole commit; known once the last segment is scanned."""
        newest = self.index.known(max(self.index.sizes(), default=-1))
        return newest.torn_bytes if newest is not None else 0

    # --- what is read ---------------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Scans and follows all that is new."""
        self.scan()
        self.follow()

    def scan(self) -> None:
        """Every record is known by its header."""
        for _ in self._blocks(self._segments()):
            pass

    def follow(self, upto: int | None = None) -> None:
        """What the broker did is known, up to its journal's end or entry `upto`."""
        for _ in self.new_failures(upto):
            pass

    def new_failures(self, upto: int | None = None) -> Iterator[FailureRow]:
        """Follows, and yields what failed as it is found."""
        if self.is_followed or (upto is not None and upto < self.index.meta.followed.next_number) or not self.unfollowed_bytes():
            return
        from tools.records.following import Following

        try:
            yield from Following(self.index, self.progress).run(upto)
        except FileNotFoundError as error:
            raise _dropped(error) from error
        self.is_followed = upto is None

    def follow_step(self, step: int) -> None:
        """The plans of this step are known."""
        made = self.all_rows(Selection(queue="versions", version=step))
        made = made[made["newest"] == step] if len(made) else made
        self.follow(int(made["number"].max()) if len(made) else None)

    def state_before(self, number: int) -> Snapshot | None:
        """The newest state from which entry `number` is reached in about a second; None where the run's start is that."""
        from tools.records.starting import nearest

        start = nearest(self.index, number)
        known = max(start.number if start is not None else 0, self.index.meta.followed.next_number)
        if number - known > NEAR_ENTRIES and self.index.writes:
            self.follow(number)
            start = nearest(self.index, number)
        return start

    def dark_from(self, number: int) -> int | None:
        """The segment from which entry `number` is read where it was found that no fold comes to it; None where one does."""
        if not any(first <= number <= last for first, last in self.index.meta.followed.unjudged):
            return None
        return next(iter(self._around(number)), None)

    def unfollowed_bytes(self) -> int:
        """Of the journal, what the broker did in them is not known yet; room that is only allotted is none of it."""
        segment, offset = self.index.meta.followed.end
        if segment == max(self.index.sizes(), default=-1) and self.index.is_blank(segment, offset):
            return 0
        return self.bytes_behind(segment, offset)

    def bytes_behind(self, segment: int, offset: int) -> int:
        """Of the journal, behind a place in it."""
        return sum(size - offset * (number == segment) for number, size in self.index.sizes().items() if number >= segment)

    # --- rows -----------------------------------------------------------------------------------------------------------------

    def _segments(self) -> list[int]:
        """Those that are there or are known, oldest first."""
        return sorted({*self.index.sizes(), *(segment.index for segment in self.index.meta.segments)})

    def _blocks(self, segments: Iterable[int]) -> Iterator[np.ndarray]:
        """Rows of these segments, in order: those scanned before at once, new ones as they are found."""
        wanted, left = list(segments), self.index.unscanned()
        before = {segment: self.index.known(segment) for segment in wanted}
        new = self._new([segment for segment in wanted if segment in left])
        pending: tuple[int, np.ndarray] | None = (-1, np.empty(0, ROW))
        for segment in wanted:
            known = before[segment]
            if known is not None and known.rows:
                yield self.index.rows(known)
            while segment in left and pending is not None and pending[0] <= segment:
                if len(pending[1]):
                    yield pending[1]
                pending = next(new, None)
        for _ in new:
            pass

    def _new(self, segments: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        if not segments or self._is_scanned:
            return
        from tools.records.survey import Survey

        survey = Survey(self.index, self.progress)
        try:
            yield from survey.run(segments)
        except FileNotFoundError as error:
            raise _dropped(error) from error
        self._is_scanned = set(segments) >= set(self.index.unscanned())

    def rows(self, wanted: Selection) -> Iterator[np.ndarray]:
        """Blocks of matching rows, oldest first. What the broker made, and made of them, stands in them as far as that is known."""
        if wanted.step is not None:
            self.follow_step(wanted.step)  # what a step trained is known only once it is planned
        elif wanted.queue == "tickets" or self.unfollowed_bytes() <= AT_ONCE_BYTES:
            self.follow()
        made = self.index.made.read(self.index.meta.followed.made)
        made = made[mask(made, wanted, self.index.meta)]
        for block in self._blocks(self._holding(wanted)):
            found = self._judge(block[mask(block, wanted, self.index.meta)])
            before = int(np.searchsorted(made["number"], block["number"][-1], "right")) if len(made) else 0
            if before:
                found, made = _merged(found, made[:before]), made[before:]
            yield found
        yield made

    def _holding(self, wanted: Selection) -> Iterator[int]:
        """Segments that may hold such rows."""
        segments, left = self._segments(), self.index.unscanned()
        begins = [self._begin(segment) for segment in segments] if wanted.begin is not None or wanted.end is not None else []
        for place, segment in enumerate(segments):
            known = self.index.known(segment) if segment not in left else None
            if known is not None and not may_hold(known, wanted):
                continue
            ends = begins[place + 1] if place + 1 < len(begins) else None
            if begins and not _overlaps(begins[place], ends, wanted):
                continue
            yield segment

    def _begin(self, segment: int) -> float | None:
        """Time of its first entry; None where that cannot be read."""
        known = self.index.known(segment)
        if known is not None and known.entries:
            return known.began
        from broker.journal.format import BLOCK, Entry, Position
        from broker.journal.reading import Scan

        first = next(iter(Scan(self.run.journal, Position(segment, BLOCK), want_frames=False, last=segment)), None)
        return first.now if isinstance(first, Entry) else None

    def _judge(self, found: np.ndarray) -> np.ndarray:
        """With what the broker made of them, as far as it was followed."""
        known = self.index.meta.followed
        if not len(found) or not known.next_number:
            return found
        if self._judged[0] != known.judged:
            self._judged = known.judged, np.ascontiguousarray(self.index.judged.read(known.judged)["number"])
        numbers = self._judged[1]
        at = np.searchsorted(numbers, found["number"])
        there = np.flatnonzero(at < len(numbers))
        there = there[numbers[at[there]] == found["number"][there]]
        judged = self.index.judged.read(known.judged)[at[there]]
        found["took"][there], found["flags"][there] = judged["took"], found["flags"][there] | judged["flags"]
        for first, last in known.unjudged:
            found["flags"][(found["number"] >= first) & (found["number"] <= last)] |= UNSURE
        return found

    def all_rows(self, wanted: Selection) -> np.ndarray:
        """All matching rows in one array."""
        found = [block for block in self.rows(wanted) if len(block)]
        return np.concatenate(found) if found else np.empty(0, ROW)

    # --- one record -----------------------------------------------------------------------------------------------------------

    def row(self, number: int, part: int) -> np.ndarray:
        """The row of one record. Raises ConfigError where there is none."""
        for block in self._blocks(self._around(number)):
            found = block[block["number"] == number]
            if (found["part"] == part).any():
                row: np.ndarray = self._judge(found[found["part"] == part])[0]
                return row
        self.follow(number)
        made = self.index.made.read(self.index.meta.followed.made)
        made = made[(made["number"] == number) & (made["part"] == part)]
        if len(made):
            return made[0]
        raise ConfigError(f"record {number}.{part}: there is none; `tidemill inspect RUN --from 0` lists all, by these numbers")

    def _around(self, number: int) -> list[int]:
        """The segment that holds an entry, by the heads of all; all where that cannot be said."""
        from broker.journal.reading import segment_head

        found: list[int] = []
        for segment in self._segments():
            path, known = segment_path(self.run.journal, segment), self.index.known(segment)
            head = segment_head(path) if path.is_file() else None
            first = head.first if head is not None else known.first if known is not None else None
            if first is None:
                return self._segments()
            if first > number:
                break
            found = [segment]
        return found

    def record(self, number: int, part: int) -> Opened:
        """One record in full. Raises ConfigError or JournalError."""
        from tools.records.record import open_record
        from tools.records.telling import made_record

        row = self.row(number, part)
        return made_record(self, row) if row["flags"] & MADE else open_record(self.run.journal, row)

    def unrefused(self, wanted: Selection) -> np.ndarray:
        """Rows of records that clients put and that the broker is not known to have refused."""
        rows = self.all_rows(wanted)
        return rows[rows["flags"] & (REFUSED | MADE) == 0]


def _merged(found: np.ndarray, made: np.ndarray) -> np.ndarray:
    both = np.concatenate([found, made])
    return both[np.lexsort((both["part"], both["number"]))]


def _overlaps(begin: float | None, end: float | None, wanted: Selection) -> bool:
    too_early = wanted.begin is not None and end is not None and end < wanted.begin
    return not too_early and not (wanted.end is not None and begin is not None and begin > wanted.end)


def _dropped(error: FileNotFoundError) -> JournalError:
    return JournalError(f"{error.filename}: the quota dropped it while it was read; run the command again")
