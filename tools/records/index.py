"""The derived index of a journal: `journal/index/`, made when missing, thrown away when stale, continued while a run goes on.

    meta.msgpack        what is indexed up to where, and what is small: names, steps, failures, damage
    NNNNNNNN.rows       rows of a segment's records, fixed width (rows.py)
    NNN....state        states of the fold now and then (zlib): a story begins at the nearest

Owns those files. Promises: nothing else of the journal's folder is written; `meta` is replaced whole, after what it counts; two readers at
once do not mix: the second keeps to memory. Where the folder cannot be written, a private one under the temporary folder is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct, field

from tools.records.rows import ROW

FORMAT = 1
HEAD_BYTES = 48
"""Of a segment, seal included: no two segments share them. (The journal's own modules are not loaded for a mere look at the index.)"""


class Segment(Struct, kw_only=True):
    """One segment, as far as it is indexed."""

    index: int
    head: bytes
    until: int = 0
    rows: int = 0
    entries: int = 0
    first: int = -1
    """Number of its first indexed entry."""
    began: float = 0.0
    ended: float = 0.0


class StepRow(Struct, kw_only=True, frozen=True):
    """A step plan: what a record's advantage and mask follow from. Planned again, it has another row."""

    step: int
    number: int
    at: float
    oldest_allowed: int
    tickets: tuple[int, ...]
    groups: tuple[tuple[int, tuple[float, ...]], ...]
    """Rewards of all members, by group."""


class FailureRow(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A record that a stage could not process, or (`final`) a ticket that ended failed."""

    number: int
    at: float
    ticket: int | None = None
    attempt: int | None = None
    group: int | None = None
    member: int | None = None
    queue: str = ""
    client: str = ""
    reason: str = ""
    final: bool = False


class Totals(Struct, kw_only=True):
    """One queue: records that the broker took, their bytes, when the first and the last came (s); refused ones apart."""

    records: int = 0
    bytes: int = 0
    first: float = 0.0
    last: float = 0.0
    refused: int = 0


class Meta(Struct, kw_only=True):
    """All that is small."""

    format: int = FORMAT
    queues: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    next_number: int = 0
    end: tuple[int, int] = (0, 0)
    """Segment and byte from which to go on."""
    state: str = ""
    """File of the state there."""
    snapshots: list[int] = field(default_factory=list)
    """Entry numbers at which a state is kept."""
    events: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    steps: list[StepRow] = field(default_factory=list)
    failures: list[FailureRow] = field(default_factory=list)
    totals: dict[str, Totals] = field(default_factory=dict)
    """By queue."""
    phase: str = ""
    """Of the run, at the end; empty where the fold did not come so far."""
    endings: dict[str, int] = field(default_factory=dict)
    damages: list[str] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Entries that are not there: first and last of each gap."""
    dropped: list[tuple[int, int]] = field(default_factory=list)
    """Those of them whose whole segments are gone."""
    note: str = ""
    """Why entries are not folded; empty where all are."""


class Snapshot(Struct, array_like=True):
    """A state of the fold, before entry `number`, which begins a commit at `position`."""

    number: int
    position: tuple[int, int]
    state: bytes


_encode = msgspec.msgpack.Encoder().encode


class Index:
    """Opened for a journal; `writes` is False where another reader is at work on it."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.directory = _place_for(journal)
        self._lock = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self.writes = self._take_lock()
        self.meta = self._load()
        self._fresh: list[np.ndarray] = []

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
            path = self.journal / f"{segment.index:08d}.log"
            if not path.is_file():
                if segment.index == meta.segments[-1].index:
                    return False  # the quota never drops the newest
                continue
            if path.stat().st_size < segment.until or head_of(path) != segment.head:
                return False
            if not self._rows_file(segment.index).is_file() and segment.rows:
                return False
        return not meta.state or (self.directory / meta.state).is_file()

    def _rows_file(self, segment: int) -> Path:
        return self.directory / f"{segment:08d}.rows"

    def stored(self) -> Iterator[np.ndarray]:
        """Rows of everything indexed so far, a segment at a time, mapped."""
        for segment in self.meta.segments:
            if segment.rows and self._rows_file(segment.index).is_file():
                yield np.memmap(self._rows_file(segment.index), ROW, "r", shape=(segment.rows,))
        yield from self._fresh

    @property
    def gone(self) -> list[int]:
        """Indexed segments that are no longer there."""
        return [segment.index for segment in self.meta.segments if not (self.journal / f"{segment.index:08d}.log").is_file()]

    @property
    def is_current(self) -> bool:
        """Nothing stands behind what is indexed: all of the newest segment is, and it is the newest."""
        paths = sorted(self.journal.glob("[0-9]*.log"))
        if not paths or not self.meta.segments:
            return False
        return (int(paths[-1].stem), paths[-1].stat().st_size) == self.meta.end

    @property
    def total_bytes(self) -> int:
        """Of all segments that are there."""
        return sum(path.stat().st_size for path in self.journal.glob("[0-9]*.log"))

    def bytes_before(self) -> dict[int, int]:
        """By segment, what lies before it."""
        sums, total = {}, 0
        for path in sorted(self.journal.glob("[0-9]*.log")):
            sums[int(path.stem)] = total
            total += path.stat().st_size
        return sums

    def snapshot(self, name: str) -> Snapshot | None:
        """A kept state."""
        try:
            return msgspec.msgpack.decode(zlib.decompress((self.directory / name).read_bytes()), type=Snapshot)
        except (OSError, zlib.error, msgspec.MsgspecError):
            return None

    def snapshot_before(self, number: int) -> Snapshot | None:
        """The newest kept state that an entry with this number is folded from."""
        fitting = [known for known in self.meta.snapshots if known <= number]
        return self.snapshot(state_name(max(fitting))) if fitting else None

    # --- what is added --------------------------------------------------------------------------------------------------------

    def add(self, segment: Segment, rows: np.ndarray) -> None:
        """Rows behind those that the segment has."""
        if not self.writes:
            self._fresh.append(rows)
            return
        with self._rows_file(segment.index).open("r+b" if segment.rows else "wb") as file:
            file.seek(segment.rows * ROW.itemsize)
            file.truncate()
            file.write(rows.tobytes())
        segment.rows += len(rows)

    def keep(self, name: str, snapshot: Snapshot) -> None:
        """Keeps a state."""
        if self.writes:
            self._replace(name, zlib.compress(_encode(snapshot), 1))

    def save(self) -> None:
        """What was added is valid from here on."""
        if self.writes:
            self._replace("meta.msgpack", _encode(self.meta))

    def _replace(self, name: str, data: bytes) -> None:
        partial = self.directory / f"{name}.new"
        partial.write_bytes(data)
        partial.rename(self.directory / name)


def state_name(number: int) -> str:
    """File of the state before an entry."""
    return f"{number:016d}.state"


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


def discard(index: Index) -> None:
    """Removes all of it: it is made anew."""
    for path in index.directory.iterdir():
        if path.name != "lock" and index.writes:
            path.unlink() if path.is_file() else shutil.rmtree(path)
    index.meta = Meta()
