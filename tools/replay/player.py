"""Plays the lives of one role's processes: gives each what it was given, in the recorded order, and waits for what it answered then.

    journal ─► moment ─┬─ orders to a client of the role ─► given ─► Stand
                       └─ the client's own message       ─► waited for: the same answer of the Stand ─► Pair

Promises: what depends on an answer is given only after it; an answer that does not come is a pair without its half, and play goes on at the
recorded state. Installs, plans and grants are those recorded; where only a part is played, slots are granted at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct, field

from broker.core.events import Received
from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.header import Header
from schemas.messages import (
    Abort,
    BrokerMessage,
    CloseSession,
    Commit,
    Deliver,
    Fence,
    Grant,
    GrantAsked,
    GrantReleased,
    Hello,
    InstallOrder,
    Numbered,
    Plan,
    PlanVoided,
    StepCommitted,
    Welcome,
)
from schemas.records import Install, Version
from tools.replay.answers import Answer, Key, Keys, content_of
from tools.replay.lookahead import Turns
from tools.replay.recording import Moment, Recording
from tools.replay.selection import Wanted
from tools.replay.staging import Scratch
from tools.replay.stand import Playable

StandMaker = Callable[[Welcome, str], Playable]
"""Starts a stage; the name is its process's."""
SLOT_KINDS = (GrantAsked, GrantReleased)


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
    """One process of the role, from its hello on."""

    sender: str
    recorded_keys: Keys
    keys: Keys
    resume_step: int = 0
    stand: Playable | None = None
    started_from: int = 0
    leases: set[int] = field(default_factory=set)
    subjects: dict[int, str] = field(default_factory=dict)
    """What each lease that was given is on; gone with its answer."""
    sessions: set[tuple[int, int]] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    seen: set[tuple[int, int]] = field(default_factory=set)
    raced: set[Key] = field(default_factory=set)
    install: tuple[BrokerMessage, tuple[Frame, ...]] | None = None
    """The last install order before the first record that is wanted."""
    has_weights: bool = False
    """rollout: an install order was seen; without one (its entry is gone) no turn can be played."""
    answers: dict[Key, Answer] = field(default_factory=dict)
    next_grant: int = 1 << 40
    user_code: dict[str, str] = {}


def _lacks_frames(message: Numbered, moment: Moment) -> bool:
    """Damaged, or left out of a cut: there is nothing to compare with."""
    return isinstance(message, Commit) and sum(len(header.frames) for header in message.puts) != len(moment.frames)


def subject_of(header: Header) -> str:
    """A record in a few words."""
    if header.ticket is None:
        return f"{header.record} {header.newest_version}"
    turn = f"turn {header.turn}: " if header.turn is not None else ""
    return f"{turn}{header.record} of session {header.ticket}.{header.attempt or 1} (group {header.group})"


class Player:
    """See the module. `given`: how many records and orders were given; `code_differs`: user code that is not the recorded one."""

    def __init__(self, role: Role, wanted: Wanted, scratch: Scratch, turns: Turns, config: dict[str, Any], make: StandMaker,
                 pace: float = 0.0) -> None:  # fmt: skip
        self._role, self._wanted, self._scratch, self._turns, self._config, self._make = role, wanted, scratch, turns, config, make
        self._speed = pace
        self._clock: tuple[float, float] | None = None
        self._lives: dict[str, Life] = {}
        self.given = 0
        self.skipped = 0
        """Records that cannot be played: their session began before what is played, or their frames are gone."""
        self.code_differs: dict[str, tuple[str, str]] = {}

    def play(self, recording: Recording) -> Iterator[Pair]:
        """Pairs in the recorded order. Raises VersionGone, and whatever a stage stops at."""
        try:
            for moment in recording.moments():
                for sender in [sender for sender, role in recording.met.items() if role == self._role and sender not in self._lives]:
                    self._begin(sender, recording.trained, {})
                yield from self._take(moment)
        finally:
            for life in self._lives.values():
                if life.stand is not None:
                    life.stand.close()

    def _take(self, moment: Moment) -> Iterator[Pair]:
        event = moment.event
        if isinstance(event, Received):
            if isinstance(event.message, Hello):
                self._meet(event.sender, event.message)
            elif event.sender in self._lives and isinstance(event.message, Numbered):
                yield from self._said(self._lives[event.sender], moment, event.message)
        for order in moment.orders:
            if order.sender in self._lives:
                self._give(self._lives[order.sender], order.message, order.frames, moment.now)

    def _meet(self, sender: str, hello: Hello) -> None:
        if hello.role is not self._role:
            return
        if hello.ready and sender not in self._lives:
            self._begin(sender, hello.resume_step or 0, hello.user_code)

    def _begin(self, sender: str, resume_step: int, user_code: dict[str, str]) -> None:
        keys = Keys(self._role), Keys(self._role)
        life = self._lives[sender] = Life(sender, *keys, resume_step=resume_step, user_code=user_code)
        if self._wanted.is_everything:
            self._start(life, resume_step)

    def _start(self, life: Life, checkpoint: int = 0) -> Playable:
        if self._role is Role.ACTOR_TRAIN:
            self._scratch.bring_checkpoint(checkpoint)
            life.started_from = checkpoint
        welcome = Welcome(epoch=1, next_seq=1, config=self._config, run_directory=str(self._scratch.path))
        life.stand = self._make(welcome, life.sender.partition("/")[0])
        for name, here in life.stand.user_code.items():
            if (then := life.user_code.get(name, here)) != here:
                self.code_differs[name] = (then, here)
        return life.stand

    # --- given ---------------------------------------------------------------------------------------------------------------

    def _give(self, life: Life, order: BrokerMessage, frames: tuple[Frame, ...], now: float) -> None:
        life.recorded_keys.given(order)
        match order:
            case Deliver():
                self._deliver(life, order, frames, now)
            case InstallOrder():
                self._order_install(life, order, frames)
            case Plan():
                self._plan(life, order, frames, now)
            case StepCommitted() | PlanVoided():
                if order.step in life.steps:
                    self._hand(life, order, frames)
            case Grant() | Fence():
                if life.stand is not None and not self._grants_itself:
                    self._hand(life, order, frames)
            case CloseSession():
                if (order.ticket, order.attempt) in life.sessions:
                    self._hand(life, order, frames)
            case Abort():
                self._abort(life, order)
            case Welcome():
                for lease in order.stale:
                    self._abort(life, Abort(lease=lease))

    @property
    def _grants_itself(self) -> bool:
        return self._role is Role.ACTOR_TRAIN or not self._wanted.is_everything

    def _hand(self, life: Life, order: BrokerMessage, frames: tuple[Frame, ...]) -> None:
        stand = life.stand if life.stand is not None else self._start(life)
        life.keys.given(order)
        stand.give(order, frames)
        self._collect(life)

    def _deliver(self, life: Life, order: Deliver, frames: tuple[Frame, ...], now: float) -> None:
        header = order.header
        session = (header.ticket or 0, header.attempt or 0)
        goes_on = header.queue == "actions" or (header.queue == "turns" and order.held_tokens > 0)
        if (goes_on and session not in life.sessions) or (not goes_on and not self._wanted.takes(header, now)):
            self.skipped += goes_on and self._wanted.takes(header, now)
            return
        if len(frames) - order.context < len(header.frames) or (header.queue == "turns" and not life.has_weights):
            self.skipped += 1
            return
        self._keep_pace(now)
        if self._role is Role.ROLLOUT:
            self._scratch.check_versions(self._turns.versions.get(order.lease, frozenset()), f"turn {header.turn} of session {session}")
        if header.queue == "versions":
            frames = self._scratch.moved(Version, frames)
        if life.install is not None:
            self._install_for(life, order.lease)
        life.leases.add(order.lease)
        life.subjects[order.lease] = subject_of(header)
        life.sessions.add(session)
        self.given += 1
        self._hand(life, order, frames)

    def _install_for(self, life: Life, lease: int) -> None:
        """The version in use before the first turn that is played."""
        assert life.install is not None
        (order, frames), life.install = life.install, None
        if self._role is Role.ROLLOUT and self._turns.versions.get(lease):
            self._install_now(life, order, frames)

    def _order_install(self, life: Life, order: InstallOrder, frames: tuple[Frame, ...]) -> None:
        if self._role is Role.REFERENCE:
            if self._wanted.is_everything:
                self._hand(life, order, frames)
            return
        life.has_weights = True
        if not life.sessions and not self._wanted.is_everything:
            life.install = (order, frames)
            return
        self._install_now(life, order, frames)

    def _install_now(self, life: Life, order: BrokerMessage, frames: tuple[Frame, ...]) -> None:
        """A version that is gone is left out: a turn that needs it will say so."""
        assert isinstance(order, InstallOrder)
        if not self._scratch.has_version(decode_record(Install, frames).location):
            return
        life.versions.add(order.header.newest_version or 0)
        self._hand(life, order, self._scratch.moved(Install, frames))

    def _plan(self, life: Life, plan: Plan, frames: tuple[Frame, ...], now: float) -> None:
        if life.stand is None:
            if not self._wanted.takes_step(plan.step, now) and not self._leads_to_wanted(life, plan):
                return
            self._start(life, max(life.resume_step, max((step for step in self._scratch.checkpoints() if step < plan.step), default=0)))
        elif not self._wanted.takes_step(plan.step, now) and not self._leads_to_wanted(life, plan):
            return
        self._keep_pace(now)
        life.steps.add(plan.step)
        life.versions.add(plan.step)
        self.given += 1
        self._hand(life, plan, frames)

    def _leads_to_wanted(self, life: Life, plan: Plan) -> bool:
        """A step before the wanted one that no checkpoint spares."""
        if self._wanted.kind not in ("step", "version") or plan.step >= self._wanted.number:
            return False
        return not any(plan.step <= step < self._wanted.number for step in self._scratch.checkpoints())

    def _abort(self, life: Life, abort: Abort) -> None:
        if abort.lease not in life.leases:
            return
        life.raced.add(("lease", abort.lease))
        life.leases.discard(abort.lease)
        self._hand(life, abort, ())

    def _keep_pace(self, now: float) -> None:
        """With a speed, gives a record no earlier than its recorded distance from the first."""
        if not self._speed:
            return
        if self._clock is None:
            self._clock = (now, time.monotonic())
        first, began = self._clock
        time.sleep(max(0.0, (now - first) / self._speed - (time.monotonic() - began)))

    # --- answered ------------------------------------------------------------------------------------------------------------

    def _said(self, life: Life, moment: Moment, message: Numbered) -> Iterator[Pair]:
        if (message.epoch, message.seq) in life.seen:
            return
        life.seen.add((message.epoch, message.seq))
        key = life.recorded_keys.of(message)  # type: ignore[arg-type]
        if not self._is_expected(life, message, key) or _lacks_frames(message, moment):
            return
        answer = Answer(key, type(message).__name__, content_of(message, moment.frames))  # type: ignore[arg-type]
        client, subject = life.sender.partition("/")[0], self._subject(life, message, key)
        yield Pair(client, moment.number, moment.now, subject, answer, self._await(life, key))

    def _subject(self, life: Life, message: Numbered, key: Key) -> str:
        if isinstance(message, Commit):
            if message.puts:
                return subject_of(message.puts[0])
            leases = [*message.acks, *(failure.lease for failure in message.fails)]
            return next((life.subjects[lease] for lease in leases if lease in life.subjects), "")
        return " ".join(map(str, (type(message).__name__, *key[1:-1])))

    def _is_expected(self, life: Life, message: Numbered, key: Key) -> bool:
        if life.stand is None or key in life.raced:
            return False
        if isinstance(message, Commit):
            leases = {*message.acks, *(failure.lease for failure in message.fails)}
            if leases:
                return leases <= life.leases or (key[0] == "session" and key[1:3] in life.sessions)
            if key[0] == "session":
                return key[1:3] in life.sessions
            return self._wanted.is_everything or key[1] in life.versions
        if isinstance(message, SLOT_KINDS):
            return not self._grants_itself
        if key[0] in ("voted", "checkpoint"):
            return key[1] in life.steps
        return key[0] == "install" and (key[1] in life.versions or self._role is Role.REFERENCE)

    def _await(self, life: Life, key: Key) -> Answer | None:
        assert life.stand is not None
        while key not in life.answers:
            more = life.stand.work()
            if not self._collect(life) and not more:
                break
        return life.answers.pop(key, None)

    def _collect(self, life: Life) -> bool:
        assert life.stand is not None
        said = life.stand.take()
        for message, frames in said:
            key = life.keys.of(message)
            life.answers[key] = Answer(key, type(message).__name__, content_of(message, frames))
            if isinstance(message, GrantAsked) and self._grants_itself:
                life.next_grant += 1
                life.stand.give(Grant(grant=life.next_grant), ())
        return bool(said)
