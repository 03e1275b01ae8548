"""The writer: a thread that makes batches durable, one after the other, while the next is being filled.

Two batches change places: the broker's thread appends to one while the other is on its way to disk. The next commit
starts when the last one is through and somebody wants it; there is no timer but that of acknowledgements
(`want(0.02)`). Where the disk has no room, the batch is cut back, kept and tried again every second; any other
error of the disk ends the writer for good: a second `fdatasync` on the same file could report as durable what the
kernel has already dropped.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence

import structlog

from broker.journal.batch import Batch
from broker.journal.format import Position
from broker.journal.segments import NO_ROOM, Segments
from schemas.codec import Frame
from schemas.errors import JournalError

log = structlog.get_logger()

RETRY_SECONDS = 1.0
BEHIND_BYTES = 32 << 20
"""Bytes that wait for the disk, from which on the broker takes in nothing more until the writer has caught up."""


class Writer:
    """Entries from `next_number` on, into `segments`."""

    def __init__(self, segments: Segments, first: Position, next_number: int, wake: int) -> None:
        self._segments = segments
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._filling, self._spare = Batch(), Batch()
        self._filling.begin(first)
        self._wanted_at = math.inf
        self._closing = False
        self._in_flight = 0
        self._swapped_bytes = 0
        """Of the entries that were handed over to be written."""
        self._failure: OSError | None = None
        self._ended = False
        self.next_number = next_number
        self.durable = next_number - 1
        self.commits = 0
        self.sync_seconds = 0.0
        """Time in which the disk was at work."""
        self.holding = False
        """A batch is kept back because the disk has no room at all."""
        self._wake = wake
        self.has_news = False
        """Something became durable, or the disk's mood changed, since the reader of `wake` last cleared it."""
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    # --- the broker's side --------------------------------------------------------------------------------------------------

    def append(self, now: float, event: bytes, frames: Sequence[Frame]) -> Position:
        """Adds the next entry to the batch that is being filled."""
        with self._lock:
            number, filling = self.next_number, self._filling
            place = filling.append(number, now, event, frames)
            self.next_number = number + 1
            return place

    def want(self, delay_s: float) -> None:
        """All entries so far are to be durable.

        The commit starts in at most `delay_s`, or as soon as the one before is through.
        """
        at = time.monotonic() + delay_s if delay_s else 0.0
        with self._lock:
            if at < self._wanted_at and self._filling.count:
                self._wanted_at = at
                self._work.notify()

    def wait(self, number: int) -> None:
        """Returns once entry `number` is durable. Raises JournalError where it will not be."""
        if not self.is_durable(number):
            self.check()

    def is_durable(self, number: int) -> bool:
        """Waits until entry `number` is durable, or the writer has ended: then False."""
        with self._lock:
            self._done.wait_for(lambda: self.durable >= number or self._ended)
            return self.durable >= number

    def check(self) -> None:
        """Raises JournalError where the writer has ended."""
        if self._failure is not None:
            where = f"the journal cannot be written ({os.strerror(self._failure.errno or 0)})"
            advice = "free room" if self._failure.errno in NO_ROOM else "look at the disk, it may have lost data of other programs too"
            raise JournalError(
                f"{where}; nothing that it did not hold was acknowledged; {advice}, and start the run again"
            ) from self._failure
        if self._ended:
            raise JournalError("the journal's writer has ended")

    @property
    def is_behind(self) -> bool:
        """More waits for the disk than should."""
        return self._filling.bytes + self._in_flight > BEHIND_BYTES

    @property
    def appended_bytes(self) -> int:
        """Of all entries that were appended in this life."""
        with self._lock:
            return self._swapped_bytes + self._filling.entry_bytes

    @property
    def is_short(self) -> bool:
        """The disk has no room, or none but the reserve."""
        return self._segments.short or self.holding

    @property
    def filling_at(self) -> Position:
        """Where the batch begins that the next entry goes into."""
        with self._lock:
            return self._filling.position

    def close(self) -> None:
        """Makes durable what is left, seals the segment, ends the thread. Raises JournalError where that failed."""
        with self._lock:
            self._closing = True
            self._work.notify()
        self._thread.join()
        if self._failure is not None:
            self.check()

    # --- the thread ---------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._segments.close()
        except OSError as error:
            self._failure = error
        finally:
            with self._lock:
                self._ended = True
                self._done.notify_all()
            self._tell()

    def _tell(self) -> None:
        os.eventfd_write(self._wake, 1)
        self.has_news = True  # last: whoever looks too early is woken once more, and nobody reads in vain

    def _turn(self) -> bool:
        """One commit; False where there will be none any more."""
        self._segments.prepare(self._filling.position)
        with self._lock:
            if not self._work.wait_for(self._is_due, self._patience()):
                batch = None
            elif not self._filling.count:
                return False
            else:
                batch = self._swap()
        if batch is None:
            self._look_for_room()
            return True
        self._commit(batch)
        return True

    def _is_due(self) -> bool:
        return self._closing or (self._filling.count > 0 and self._wanted_at <= time.monotonic())

    def _patience(self) -> float | None:
        left = self._wanted_at - time.monotonic() if self._filling.count else math.inf
        left = min(left, RETRY_SECONDS) if self._segments.short else left
        return None if left == math.inf else max(0.0, left)

    def _swap(self) -> Batch:
        batch = self._filling
        self._swapped_bytes += batch.entry_bytes
        self._spare.begin(self._segments.place_after(batch))
        self._filling, self._spare = self._spare, batch
        self._wanted_at = math.inf
        self._in_flight = batch.bytes
        return batch

    def _look_for_room(self) -> None:
        if self._segments.short and self._segments.find_room():
            self._tell()

    def _commit(self, batch: Batch) -> None:
        while not self._try(batch):
            self._hold()
        with self._lock:
            self.durable = batch.last
            self.commits += 1
            self._in_flight = 0
            self._done.notify_all()
        self._tell()

    def _try(self, batch: Batch) -> bool:
        began = time.monotonic()
        try:
            self._segments.write(batch)
            self.sync_seconds += time.monotonic() - began
        except OSError as error:
            if error.errno not in NO_ROOM or self._closing:
                raise
            self._segments.cut_back()
            return False
        self.holding = False
        return True

    def _hold(self) -> None:
        """The batch waits for room, and whoever watches is told so."""
        if not self.holding:
            self.holding = True
            log.error("journal_held", detail="the disk is full: nothing is acknowledged until there is room")
            self._tell()
        with self._lock:
            self._work.wait_for(lambda: self._closing, RETRY_SECONDS)
