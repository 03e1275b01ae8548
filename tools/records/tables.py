"""What an index knows beside its columns: segments, and what the broker made of the run as far as it was followed. Plain Structs."""

from __future__ import annotations

from msgspec import Struct, field

FORMAT = 2


class Totals(Struct, kw_only=True):
    """Records of one queue, their bytes, when the first and the last came (s); of them, those that the broker refused."""

    records: int = 0
    bytes: int = 0
    first: float = 0.0
    last: float = 0.0
    refused: int = 0

    def add(self, other: Totals) -> None:
        """Takes in what came later."""
        self.first = other.first if not self.records else min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.records += other.records
        self.bytes += other.bytes
        self.refused += other.refused


class Segment(Struct, kw_only=True):
    """One segment, as far as it is scanned: up to byte `until`, where entry `next` is expected."""

    index: int
    head: bytes
    until: int = 0
    next: int | None = None
    previous: int | None = None
    """Checksum of its last commit; None where it is not known."""
    torn_bytes: int = 0
    """What it ends with and is no whole commit."""
    rows: int = 0
    entries: int = 0
    first: int = -1
    """Number of its first entry."""
    began: float = 0.0
    ended: float = 0.0
    tickets: tuple[int, int] = (0, -1)
    """Lowest and highest ticket that its records speak of."""
    groups: tuple[int, int] = (0, -1)
    hellos: list[tuple[str, int]] = field(default_factory=list)
    """Who said that it could work, and in the entry at which byte."""
    events: dict[str, int] = field(default_factory=dict)
    totals: dict[str, Totals] = field(default_factory=dict)
    unreadable: int = 0
    damages: list[str] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Entries that are not there: first and last of each gap."""


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
    """A record that a stage could not process, or (`final`) a ticket that ended failed. `seconds`: how long the stage had it."""

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
    seconds: float | None = None


class Followed(Struct, kw_only=True):
    """What the broker did, as far as its core was stepped again: every entry below `next_number`."""

    next_number: int = 0
    end: tuple[int, int] = (0, 0)
    """Segment and byte from which to go on."""
    state: str = ""
    """File of the state there."""
    snapshots: list[int] = field(default_factory=list)
    """Entry numbers at which a state is kept."""
    made: int = 0
    """Rows of records that the broker made."""
    judged: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """By queue."""
    unjudged: list[tuple[int, int]] = field(default_factory=list)
    """Entries that could not be followed: first and last of each stretch."""
    steps: list[StepRow] = field(default_factory=list)
    failures: list[FailureRow] = field(default_factory=list)
    endings: dict[str, int] = field(default_factory=dict)
    phase: str = ""
    """Of the run, there; empty where it is not known."""
    note: str = ""
    """Why entries are not followed; empty where all are."""


class Meta(Struct, kw_only=True):
    """All that is small."""

    format: int = FORMAT
    queues: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    """By index; those that nobody has asked for yet may be absent."""
    followed: Followed = field(default_factory=Followed)


class Snapshot(Struct, array_like=True):
    """A state of the fold, before entry `number`, which begins a commit at `position`; and where its records' frames lie.

    Both as msgpack, of `State` and of `broker.journal.Contents`: to know of them costs no import.
    """

    number: int
    position: tuple[int, int]
    state: bytes
    arena: bytes
