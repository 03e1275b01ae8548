"""The segments that this life of the broker writes: made, filled, sealed, cut back.

Owns the file that is written and the one that is prepared to follow. Promises: a segment has its name only once its
head is on disk, and its predecessor is cut to its content before that, so zeroes at the end of any but the last
segment are damage; a directory is synced before the first batch behind a new name. Some room is always allotted
ahead, so that a full disk shows while there is still room for refusals.

Every life begins a segment of its own: what an earlier one wrote is never written again.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

from broker.journal.batch import Batch
from broker.journal.files import PARTIAL, Files, write_fully
from broker.journal.format import BLOCK, BatchHead, Position, SegmentHead, encode_segment_head, padded
from broker.journal_files import segment_path
from schemas.errors import JournalError

SEGMENTS_MOST = 100_000_000
"""Their names have eight digits: no reader knows others."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_DIRECT = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})
RESERVE_BYTES = 2 << 20
"""Room ahead of the last batch, at most: refusals and acknowledgements of a broker whose disk is full go there."""
STEP_BYTES_MAX = 64 << 20
"""Room is allotted in steps that double up to this: a short run never asks for much."""


class Segments:
    """Writes batches, one after the other, into segments from `index` on."""

    def __init__(self, directory: Path, files: Files, segment_bytes: int, epoch: int, previous: int, index: int) -> None:
        """Raises JournalError where the names are used up."""
        if index >= SEGMENTS_MOST:
            last = segment_path(directory, index - 1)
            raise JournalError(f"{last}: no segment can follow this one; where somebody put it there, move it out of the journal")
        self._directory = directory
        self._files = files
        self._segment_bytes = segment_bytes
        self._reserve = padded(min(RESERVE_BYTES, segment_bytes // 4))
        self._epoch = epoch
        self._previous = previous
        self._file = -1
        self._index = index - 1
        self._end = 0
        """Of what is durable in the file."""
        self._allotted = 0
        self._direct = True
        self._next = -1
        """The prepared follower's file."""
        self._next_allotted = 0
        self.sealed_bytes = 0
        """Of the segments sealed in this life."""
        self.short = False
        """The disk refused room ahead; what is allotted may still be written."""

    # --- batches ------------------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> BatchHead:
        """Makes a batch durable.

        Raises OSError; where `error.errno` is in `NO_ROOM`, `cut_back` and try again later.
        """
        if batch.position.segment != self._index:
            self._follow(batch)
        head = batch.seal(self._epoch, self._previous)
        end = batch.position.offset + batch.bytes
        self._make_room(end)
        self._file = self._put(self._file, self._path(self._index), batch.data, batch.position.offset)
        self._files.fdatasync(self._file)
        self._end, self._previous = end, head.checksum
        return head

    def _put(self, file: int, path: Path, data: memoryview, offset: int) -> int:
        """Writes to a file.

        Returns its descriptor, another one where the file system opens files directly and then will not write so.
        """
        try:
            write_fully(self._files, file, data, offset, BLOCK if self._direct else 1)
        except OSError as error:
            if not (self._direct and error.errno in NOT_DIRECT):
                raise
            self._direct = False
            self._files.close(file)
            file = self._files.open(path, os.O_WRONLY)
            write_fully(self._files, file, data, offset)
        return file

    def cut_back(self) -> None:
        """Removes what a failed write left behind the last durable batch."""
        if self._file >= 0 and self._end:
            self._files.truncate(self._file, self._end)
            self._allotted = self._end

    @property
    def bytes(self) -> int:
        """Content on disk, of this life."""
        return self.sealed_bytes + self._end

    # --- room ---------------------------------------------------------------------------------------------------------------

    def _make_room(self, end: int) -> None:
        """Allots room up to `end` and a reserve; a refusal counts only where it leaves too little for this batch."""
        needed = end + self._reserve
        if needed <= self._allotted:
            return
        generous = self._allotted + min(self._allotted, STEP_BYTES_MAX)
        self.short = not (self._gets(max(needed, generous)) or self._gets(needed))
        if end > self._allotted and not self._gets(end):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _gets(self, size: int) -> bool:
        """Asks for room up to `size`; False where the disk has none."""
        try:
            self._allotted = self._allot(self._file, self._allotted, size)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def _allot(self, file: int, old: int, new: int) -> int:
        try:
            self._files.allocate(file, old, padded(new) - old)
        except OSError as error:
            if error.errno not in NOT_DIRECT:
                raise
            return max(old, 0)  # a file system that cannot: each write makes its own room
        return padded(new)

    def find_room(self) -> bool:
        """Asks the disk again for what it refused; True where there is room now."""
        self.short = False
        if self._file >= 0:
            self._make_room(self._end)
            self.prepare(Position(self._index, self._end))
        return not self.short

    # --- segments -----------------------------------------------------------------------------------------------------------

    def place_after(self, batch: Batch) -> Position:
        """Where the batch behind `batch` will lie: in the prepared segment, if there is one."""
        is_last_here = self._next >= 0 and batch.position.segment == self._index
        return Position(batch.position.segment + 1, BLOCK) if is_last_here else batch.end

    def prepare(self, end: Position) -> None:
        """Prepares the next segment where the one that `end` lies in is full.

        A refusal of the disk leaves things as they are.
        """
        if end.offset < self._segment_bytes or self._next >= 0 or end.segment != self._index:
            return
        try:
            self._next, self._next_allotted = self._make(end.segment + 1)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.short = True

    def _make(self, index: int) -> tuple[int, int]:
        partial = self._path(index).with_suffix(PARTIAL)
        file = self._open(partial)
        try:
            return file, self._allot(file, 0, BLOCK + 2 * self._reserve)
        except OSError:
            self._files.close(file)
            self._files.unlink(partial)
            raise

    def _open(self, path: Path) -> int:
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        if self._direct:
            try:
                return self._files.open(path, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno not in NOT_DIRECT:
                    raise
                self._direct = False
        return self._files.open(path, flags)

    def _follow(self, batch: Batch) -> None:
        """Seals the segment in hand and gives the next one its head and name."""
        index = batch.position.segment
        if self._next < 0:
            self._next, self._next_allotted = self._make(index)
        self.seal()
        self._publish(index, SegmentHead(index, batch.first, self._epoch, self._previous))
        self._file, self._allotted, self._end, self._index = self._next, self._next_allotted, BLOCK, index
        self._next, self._next_allotted = -1, 0

    def _publish(self, index: int, head: SegmentHead) -> None:
        block = memoryview(mmap.mmap(-1, BLOCK))  # a direct file takes page-aligned memory only
        block[:] = encode_segment_head(head)
        partial = self._path(index).with_suffix(PARTIAL)
        self._next = self._put(self._next, partial, block, 0)
        self._files.fdatasync(self._next)
        self._files.rename(partial, self._path(index))
        self._files.sync_directory(self._directory)

    def seal(self) -> None:
        """Cuts the segment in hand to its content; it is never written again."""
        if self._file < 0:
            return
        self._files.truncate(self._file, self._end)
        self._files.fdatasync(self._file)
        self._files.close(self._file)
        self.sealed_bytes += self._end
        self._file, self._allotted, self._end = -1, 0, 0

    def close(self) -> None:
        """Seals what is in hand and removes what was prepared."""
        self.seal()
        if self._next >= 0:
            self._files.close(self._next)
            self._files.unlink(self._path(self._index + 1).with_suffix(PARTIAL))
            self._next = -1

    def _path(self, index: int) -> Path:
        return segment_path(self._directory, index)
