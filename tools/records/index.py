"""The derived index of a journal: `journal/index/`, made when missing, thrown away when stale, continued while a run goes on.

    meta.msgpack        what is known up to where, and what is small: names, segments, steps, failures
    NNNNNNNN.rows       rows of a segment's records, fixed width (rows.py)
    made.rows           rows of records that the broker made: tickets
    judged.rows         by entry: refused or not, and how long its maker had what it was made from
    NNN....state        states of the fold now and then (zlib): a story, or a replay, begins at the nearest

Owns those files. Promises: nothing else of the journal's folder is written; `meta` is replaced whole, after what it counts; two readers at
once do not mix: the second keeps to memory. Where the folder cannot be written, a private one under the temporary folder is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import zlib
from bisect import bisect_left
from pathlib import Path

import msgspec
import numpy as np

from broker.journal_files import segment_path
from tools.records.columns import Column
from tools.records.progress import sizes_of
from tools.records.rows import JUDGED, ROW
from tools.records.tables import FORMAT, Meta, Segment, Snapshot, Totals

BLANK = b"\0\0\0\0"
"""Where a commit would say that it is one."""
HEAD_BYTES = 48
"""Of a segment, seal included: no two segments share them. (The journal's own modules are not loaded for a mere look at the index.)"""

_encode = msgspec.msgpack.Encoder().encode


class Index:
    """Opened for a journal; `writes` is False where another reader is at work on it."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.directory = _place_for(journal)
        self._lock = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self.writes = self._take_lock()
        self.meta = self._load()
        self._rows: dict[int, Column] = {}
        self.made = Column(self.directory / "made.rows", ROW, writes=self.writes)
        self.judged = Column(self.directory / "judged.rows", JUDGED, writes=self.writes)

    def _take_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Lets others write."""
        os.close(self._lock)

    # --- what is there --------------------------------------------------------------------------------------------------------

    def _load(self) -> Meta:
        try:
            found = msgspec.msgpack.decode((self.directory / "meta.msgpack").read_bytes(), type=Meta)
        except (OSError, msgspec.MsgspecError):
            return Meta()
        return found if found.format == FORMAT and self._fits(found) else Meta()

    def _fits(self, meta: Meta) -> bool:
        """The segments that it speaks of are those that are there, or are gone; none has shrunk."""
        for segment in meta.segments:
            path = segment_path(self.journal, segment.index)
            if not path.is_file():
                if segment.index == meta.segments[-1].index:
                    return False  # the quota never drops the newest
                continue
            if path.stat().st_size < segment.until or head_of(path) != segment.head:
                return False
            if not rows_file(self.directory, segment.index).is_file() and segment.rows:
                return False
        state = meta.followed.state
        return not state or (self.directory / state).is_file()

    def known(self, segment: int) -> Segment | None:
        """What is known of a segment."""
        place = bisect_left(self.meta.segments, segment, key=lambda each: each.index)
        found = self.meta.segments[place : place + 1]
        return found[0] if found and found[0].index == segment else None

    def rows(self, segment: Segment) -> np.ndarray:
        """Those of a segment that are scanned, mapped."""
        return self.column(segment.index).read(segment.rows)

    def column(self, segment: int) -> Column:
        """The rows of a segment."""
        if segment not in self._rows:
            self._rows[segment] = Column(rows_file(self.directory, segment), ROW, writes=self.writes)
        return self._rows[segment]

    def sizes(self) -> dict[int, int]:
        """Bytes of the segments that are there, oldest first."""
        return sizes_of(self.journal)

    def unscanned(self) -> dict[int, int]:
        """Segments that are not scanned to their ends, with the bytes that are left; room that is only allotted is none of them."""
        found, sizes = {}, self.sizes()
        for segment, size in sizes.items():
            known = self.known(segment)
            if known is None or (known.until < size and not (segment == max(sizes) and self.is_blank(segment, known.until))):
                found[segment] = size - (known.until if known is not None else 0)
        return found

    def is_blank(self, segment: int, offset: int) -> bool:
        """No commit begins there: the file ends, or nothing was written behind it."""
        with segment_path(self.journal, segment).open("rb") as file:
            file.seek(offset)
            return not file.read(len(BLANK)).strip(b"\0")

    @property
    def gone(self) -> list[int]:
        """Indexed segments that are no longer there."""
        return [segment.index for segment in self.meta.segments if not segment_path(self.journal, segment.index).is_file()]

    def totals(self) -> dict[str, Totals]:
        """By queue, tickets among them as far as they are known; refused ones are no records."""
        found: dict[str, Totals] = {}
        for segment in self.meta.segments:
            for queue, of in segment.totals.items():
                found.setdefault(queue, Totals()).add(of)
        for queue, count in self.meta.followed.refused.items():
            if queue in found:
                found[queue].records -= count
                found[queue].refused += count
        made = self.made.read(self.meta.followed.made)
        if len(made):
            found["tickets"] = Totals(records=len(made), first=float(made["at"][0]), last=float(made["at"][-1]))
        return found

    def gaps(self) -> list[tuple[int, int]]:
        """Entries of whole segments that are not there: first and last of each stretch, as far as both neighbours are known."""
        found, expected, behind = [], 0, -1
        for segment in self.meta.segments:
            is_next = segment.index == behind + 1 or not segment_path(self.journal, behind + 1).is_file()
            if is_next and segment.first > expected:
                found.append((expected, segment.first - 1))
            expected, behind = segment.next if segment.next is not None else expected, segment.index
        return found

    def holes(self) -> list[tuple[int, int]]:
        """Segments that are not there before one in which no entry can be read, so that no entry's number tells of them."""
        found, behind = [], -1
        for segment in self.meta.segments:
            if segment.index > behind + 1 and not segment.entries:
                found.append((behind + 1, segment.index - 1))
            behind = segment.index
        return found

    def snapshot(self, name: str) -> Snapshot | None:
        """A kept state."""
        try:
            return msgspec.msgpack.decode(zlib.decompress((self.directory / name).read_bytes()), type=Snapshot)
        except (OSError, zlib.error, msgspec.MsgspecError):
            return None

    def snapshot_before(self, number: int) -> Snapshot | None:
        """The newest kept state that an entry with this number is folded from."""
        fitting = [known for known in self.meta.followed.snapshots if known <= number]
        return self.snapshot(state_name(max(fitting))) if fitting else None

    # --- what is added --------------------------------------------------------------------------------------------------------

    def put(self, segment: Segment) -> None:
        """What is known of a segment now."""
        place = bisect_left(self.meta.segments, segment.index, key=lambda each: each.index)
        replaced = place < len(self.meta.segments) and self.meta.segments[place].index == segment.index
        self.meta.segments[place : place + replaced] = [segment]

    def keep(self, name: str, snapshot: Snapshot) -> None:
        """Keeps a state."""
        if self.writes:
            _replace(self.directory, name, zlib.compress(_encode(snapshot), 1))

    def save(self) -> None:
        """What was added is valid from here on."""
        if self.writes:
            _replace(self.directory, "meta.msgpack", _encode(self.meta))


def _replace(directory: Path, name: str, data: bytes) -> None:
    partial = directory / f"{name}.new"
    partial.write_bytes(data)
    partial.rename(directory / name)


def state_name(number: int) -> str:
    """File of the state before an entry."""
    return f"{number:016d}.state"


def rows_file(directory: Path, segment: int) -> Path:
    """File of a segment's rows."""
    return directory / f"{segment:08d}.rows"


def head_of(path: Path) -> bytes:
    """A segment's head: another segment under the same name has another."""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _place_for(journal: Path) -> Path:
    place = journal / "index"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        (place / "lock").touch()
    except OSError:
        return _private_place(journal)
    return place


def _private_place(journal: Path) -> Path:
    """Under the temporary folder, the same for the same journal; one of somebody else's making is not trusted."""
    name = hashlib.sha256(str(journal.resolve()).encode()).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"tidemill-index-{os.getuid()}-{name}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.lstat().st_uid != os.getuid() or place.is_symlink():
        return Path(tempfile.mkdtemp(prefix="tidemill-index-"))
    return place
