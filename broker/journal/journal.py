"""The journal: every event with its time and frames, in order, durable in groups. See README.md for what it promises.

Owns `<run>/journal/`: segments, checkpoints, what is quarantined, and the lock that keeps a second broker out. It
does not know what an event or a state means. Life: made, then read (`checkpoints`, `read`), then appended to, then
closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from broker.journal import checkpoint as checkpoints
from broker.journal.checkpoint import Checkpoint, Contents
from broker.journal.checkpointer import Checkpointer
from broker.journal.files import DiskFiles, Files
from broker.journal.format import BLOCK, Entry, Position
from broker.journal.quarantine import Quarantine
from broker.journal.reading import Damage, Scan, ends_before, entry_at, segment_head
from broker.journal.scrub import Scrub
from broker.journal.segments import Segments
from broker.journal.writer import Writer
from broker.journal_files import segment_path, segment_paths, unfinished_paths
from schemas.codec import Frame
from schemas.errors import JournalDamagedError, JournalError

SEGMENT_BYTES = 256 << 20
"""A new segment from here on: small enough to drop whole by quota, large enough that few files hold a run."""
QUOTA_BYTES = 20 << 30
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_ENTRIES = 20_000
"""A checkpoint after so much or so many, whichever is first: what a start has to fold at most, about a second's work."""
UNCOVERED = "no checkpoint covers that"

log = structlog.get_logger()


class Journal:
    """Append, make durable, read back."""

    def __init__(
        self, directory: Path, segment_bytes: int = SEGMENT_BYTES, quota_bytes: int = QUOTA_BYTES, files: Files | None = None
    ) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._quota_bytes = quota_bytes
        self._files = files if files is not None else DiskFiles()
        self._lock = self._take_lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._quarantine = Quarantine(directory)
        self._writer: Writer | None = None
        self._segments: Segments | None = None
        self._checkpointer = Checkpointer(self._files, directory, quota_bytes)
        self._scrub: Scrub | None = None
        self._is_read = False
        self._next_number = 0
        self._previous = 0
        self._earlier_bytes = 0
        self._checkpoint_number, self._checkpoint_bytes, self._segment_since = 0, 0, -1
        """What was appended when the last checkpoint was made."""
        self.cut_bytes = 0
        """What was cut from the end at the start: nothing of it was ever acknowledged."""
        self.last_position = Position(0, BLOCK)
        """Of the entry that was appended last."""
        self._remove_partial()

    def _take_lock(self) -> int:
        lock = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise JournalError(f"another broker is at work on {self.directory}; end it or choose another run name") from error
        return lock

    def _remove_partial(self) -> None:
        """What a dead broker was making."""
        try:
            for path in unfinished_paths(self.directory):
                self._files.unlink(path)
        except (OSError, JournalError):
            self._let_go()
            raise

    def _let_go(self) -> None:
        for descriptor in (self._lock, self._wake):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._wake = -1

    def segments(self) -> list[Path]:
        """Segment files, oldest first."""
        return segment_paths(self.directory)

    # --- reading ------------------------------------------------------------------------------------------------------------

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Those that are whole, newest first."""
        for path in checkpoints.paths(self.directory):
            found = checkpoints.read(path)
            if found is not None:
                yield found
            else:
                log.warning(
                    "checkpoint_damaged", path=str(path), detail="it is not used; an older one, or the whole journal, is read instead"
                )

    def read(self, after: Checkpoint | None = None, *, accept_loss: bool = False) -> Iterator[Entry]:
        """Entries from `after` on, or all; to be exhausted before the first append, and again as often as wanted.

        Damage is quarantined. Raises JournalDamagedError where entries are lost, but for those that `after` covers, unless
        `accept_loss`.
        """
        scan = Scan(self.directory, after.position if after else None, None if after else 0, after.number if after else 0)
        covered = after.number if after else 0
        if after and not accept_loss and ends_before(self.directory, after.position):
            what = f"{after.position.segment:08d}.log is gone or cut short, and with it what came behind checkpoint {covered}"
            raise JournalDamagedError(f"{self.directory}: {what}; {UNCOVERED}", acceptable=True)
        for item in scan:
            if isinstance(item, Damage):
                self._quarantine.take(item)
                if (item.foreign or item.last >= max(item.first, covered)) and not accept_loss:
                    acceptable = covered > 0 or not item.first == 0 <= item.last  # the first one is the run's start
                    raise JournalDamagedError(f"{self.directory}: {item}; {UNCOVERED}", acceptable=acceptable)
            elif item.number >= covered:
                yield item
        self._next_number = max(covered, scan.expected or 0)
        self._previous = scan.previous or 0
        self._is_read = True
        if self._writer is None:
            self._cut(scan)
            self._checkpointer.adopt(list(checkpoints.valid(self.directory)))

    def entry_at(self, position: Position) -> Entry:
        """One entry by its position; JournalError where it is not there."""
        return entry_at(self.directory, position)

    def _cut(self, scan: Scan) -> None:
        """Cuts the unfinished tail of the last segment; a new one will be begun behind it."""
        self.cut_bytes = scan.torn_bytes
        if scan.torn_bytes:
            log.warning("journal_tail_cut", bytes=scan.torn_bytes, detail="an unfinished commit, never acknowledged")
        if scan.end is None or (path := segment_path(self.directory, scan.end.segment)).stat().st_size <= scan.end.offset:
            return
        file = self._files.open(path, os.O_WRONLY)
        try:
            self._files.truncate(file, scan.end.offset)
            self._files.fdatasync(file)
        finally:
            self._files.close(file)

    # --- appending ----------------------------------------------------------------------------------------------------------

    def append(self, event: bytes, now: float, frames: Sequence[Frame] = ()) -> int:
        """Adds an entry; returns its number. It becomes durable some time after `want`."""
        writer = self._writer if self._writer is not None else self._open_writer()
        self.last_position = writer.append(now, event, frames)
        return writer.next_number - 1

    def _open_writer(self) -> Writer:
        paths = self.segments()
        heads = [head for head in map(segment_head, paths) if head is not None]
        if paths and not self._is_read:
            raise JournalError(f"{self.directory} holds a journal: it is read before anything is appended")
        index = int(paths[-1].stem) + 1 if paths else 0
        epoch = max((head.epoch for head in heads), default=0) + 1
        self._earlier_bytes = sum(path.stat().st_size for path in paths)
        self._segments = Segments(self.directory, self._files, self._segment_bytes, epoch, self._previous, index)
        self._writer = Writer(self._segments, Position(index, BLOCK), self._next_number, self._wake)
        self._checkpoint_number, self._segment_since = self._next_number, index
        return self._writer

    @property
    def next_number(self) -> int:
        """Number of the entry that will be appended next."""
        return self._writer.next_number if self._writer is not None else self._next_number

    @property
    def durable(self) -> int:
        """Highest number below which all is durable; one less than the first."""
        return self._writer.durable if self._writer is not None else self._next_number - 1

    def want(self, delay_s: float = 0.0) -> None:
        """What was appended so far is to be durable: the commit begins within `delay_s`, or when the one before is through."""
        if self._writer is not None:
            self._writer.want(delay_s)

    def commit(self) -> int:
        """Waits until all that was appended is durable; returns `durable`. Raises JournalError where that cannot be."""
        if self._writer is not None:
            self._writer.want(0.0)
            self._writer.wait(self._writer.next_number - 1)
        return self.durable

    # --- the loop's side ----------------------------------------------------------------------------------------------------

    @property
    def wake(self) -> int:
        """A descriptor that is readable when something became durable, or the disk's mood changed."""
        return self._wake

    def settle(self) -> None:
        """Clears the descriptor; raises JournalError where the writer has failed."""
        writer = self._writer
        if writer is None or not writer.has_news:
            return
        writer.has_news = False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        writer.check()

    @property
    def is_behind(self) -> bool:
        """So much waits for the disk that nothing more should be taken in."""
        return self._writer is not None and self._writer.is_behind

    def pause(self, timeout_s: float) -> None:
        """Waits for the writer, at most so long."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll(max(0, int(timeout_s * 1000)))

    @property
    def total_bytes(self) -> int:
        """Content of all segments."""
        return self._earlier_bytes - self._checkpointer.dropped_bytes + (self._segments.bytes if self._segments is not None else 0)

    def figures(self) -> dict[str, float]:
        """For people: bytes on disk, entries, group commits, seconds of writing and syncing."""
        writer = self._writer
        found: dict[str, float] = {"bytes": self.total_bytes, "entries": self.next_number}
        if writer is not None:
            found |= {"commits": writer.commits, "sync_seconds": writer.sync_seconds}
        return found

    @property
    def is_short(self) -> bool:
        """The disk has no room but a reserve, or the quota is used up: nothing new should be begun."""
        return (self._writer is not None and self._writer.is_short) or self.total_bytes > self._quota_bytes

    # --- checkpoints --------------------------------------------------------------------------------------------------------

    @property
    def checkpoint_due(self) -> bool:
        """So much was appended since the last one, or a segment was sealed, or the quota wants segments dropped."""
        if self._writer is None or self._checkpointer.is_busy:
            return False
        entries, size = self.next_number - self._checkpoint_number, self._writer.appended_bytes - self._checkpoint_bytes
        if entries >= CHECKPOINT_ENTRIES or size >= CHECKPOINT_BYTES:
            return True
        return self.last_position.segment != self._segment_since

    def checkpoint(self, state: bytes, arena: Contents, now: float) -> None:
        """Hands over what the entries so far amount to; written in the background once they are durable."""
        if self._writer is None:
            return
        writer = self._writer
        writer.want(0.0)
        made = Checkpoint(number=writer.next_number, now=now, position=writer.filling_at, state=state, arena=arena)
        self._checkpoint_number, self._checkpoint_bytes = made.number, writer.appended_bytes
        self._segment_since = self.last_position.segment
        self._checkpointer.begin(made, lambda: writer.is_durable(made.number - 1), self.total_bytes)

    def finish_checkpoint(self) -> None:
        """Waits for the one in the making."""
        self._checkpointer.close()

    def watch_over(self, until: Checkpoint | None) -> None:
        """Reads in the background what a start did not: segments below `until`, for damage."""
        if until is not None:
            self._scrub = Scrub(self.directory, until, self._quarantine)

    def finish_looking(self) -> None:
        """Waits until `watch_over` is through."""
        if self._scrub is not None:
            self._scrub.join()

    # --- the end ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Makes what is left durable, waits for a checkpoint in the making, lets the lock go. Raises JournalError if the disk refuses."""
        try:
            if self._writer is not None:
                self._writer.close()
            self._next_number = self.next_number
        finally:
            self._checkpointer.close()
            if self._scrub is not None:
                self._scrub.close()
            self._writer = self._segments = None
            self._let_go()
