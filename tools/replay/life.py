"""One process of the role that is played, from its hello on: what it was given, what it said then, what it says now.

Owns the stand that it is played on. Promises: an answer is waited for until it comes or nothing more can come of itself; where slots are
not granted as recorded, they are granted at once.
"""

from __future__ import annotations

import time

from msgspec import Struct, field

from schemas.codec import Frame
from schemas.header import Header
from schemas.messages import BrokerMessage, Commit, Deliver, Grant, GrantAsked, InstallOrder, Numbered
from tools.replay.answers import Answer, Key, Keys, content_of
from tools.replay.recording import Moment
from tools.replay.stand import Playable


class Pair(Struct, frozen=True):
    """A recorded answer and the one given now (None: it did not come). `number`, `at`: the recorded entry and its time."""

    client: str
    number: int
    at: float
    subject: str
    """What it answers, such as `episode of session 43.1 (group 20)`."""
    recorded: Answer
    now: Answer | None


class Life(Struct):
    """See the module."""

    sender: str
    recorded_keys: Keys
    keys: Keys
    grants_itself: bool
    resume_step: int = 0
    stand: Playable | None = None
    started_from: int = 0
    leases: set[int] = field(default_factory=set)
    subjects: dict[int, str] = field(default_factory=dict)
    """What each lease that was given is on."""
    sessions: set[tuple[int, int]] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    seen: set[tuple[int, int]] = field(default_factory=set)
    raced: set[Key] = field(default_factory=set)
    install: tuple[InstallOrder, tuple[Frame, ...]] | None = None
    """The last install order before the first record that is wanted."""
    has_weights: bool = False
    """rollout: an install order was seen; without one (its entry is gone) no turn can be played."""
    answers: dict[Key, Answer] = field(default_factory=dict)
    next_grant: int = 1 << 40
    user_code: dict[str, str] = {}
    commits: int = 0
    """Said now."""
    spent: list[tuple[float, str]] = field(default_factory=list)
    """Seconds, and for what: of records that were given alone."""

    @property
    def client(self) -> str:
        """The process's name."""
        return self.sender.partition("/")[0]

    def hand(self, stand: Playable, order: BrokerMessage, frames: tuple[Frame, ...]) -> None:
        """Gives an order, and takes what is said to it at once."""
        self.keys.given(order)
        stand.give(order, frames)
        self.collect(stand)

    def hand_alone(self, stand: Playable, order: Deliver, frames: tuple[Frame, ...]) -> None:
        """Gives a record, and nothing else until it is answered: the time is its own."""
        began, before = time.perf_counter(), self.commits
        self.hand(stand, order, frames)
        while self.commits == before:
            more = stand.work()
            if not self.collect(stand) and not more:
                break
        self.spent.append((time.perf_counter() - began, self.subjects.get(order.lease, "")))

    def answer(self, key: Key) -> Answer | None:
        """Works until this answer is there; None where it does not come."""
        assert self.stand is not None
        while key not in self.answers:
            more = self.stand.work()
            if not self.collect(self.stand) and not more:
                break
        return self.answers.pop(key, None)

    def collect(self, stand: Playable) -> bool:
        """Takes what was said; False where that is nothing."""
        said = stand.take()
        for message, frames in said:
            key = self.keys.of(message)
            self.commits += isinstance(message, Commit)
            self.answers[key] = Answer(key, type(message).__name__, content_of(message, frames))
            if isinstance(message, GrantAsked) and self.grants_itself:
                self.next_grant += 1
                stand.give(Grant(grant=self.next_grant), ())
        return bool(said)

    def subject(self, message: Numbered, key: Key) -> str:
        """What a message of this process is about."""
        if isinstance(message, Commit):
            if message.puts:
                return subject_of(message.puts[0])
            leases = [*message.acks, *(failure.lease for failure in message.fails)]
            return next((self.subjects[lease] for lease in leases if lease in self.subjects), "")
        return " ".join(map(str, (type(message).__name__, *key[1:-1])))


def lacks_frames(message: Numbered, moment: Moment) -> bool:
    """Damaged, or left out of a cut: there is nothing to compare with."""
    return isinstance(message, Commit) and sum(len(header.frames) for header in message.puts) != len(moment.frames)


def subject_of(header: Header) -> str:
    """A record in a few words."""
    if header.ticket is None:
        return f"{header.record} {header.newest_version}"
    turn = f"turn {header.turn}: " if header.turn is not None else ""
    return f"{turn}{header.record} of session {header.ticket}.{header.attempt or 1} (group {header.group})"
