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

from broker.core.events import Received
from broker.core.state import State
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
from schemas.records import RECORDS, Install, Version
from tools.replay.answers import Answer, Key, Keys, content_of
from tools.replay.errors import another_schema
from tools.replay.life import Life, Pair, lacks_frames, subject_of
from tools.replay.lookahead import Turns
from tools.replay.recording import Moment, Recording
from tools.replay.selection import Wanted
from tools.replay.staging import Scratch
from tools.replay.stand import Playable
from tools.replay.stretch import Stretch

StandMaker = Callable[[Welcome, str], Playable]
"""Starts a stage; the name is its process's."""
SLOT_KINDS = (GrantAsked, GrantReleased)


class Player:
    """See the module. `given`: how many records and orders were given; `code_differs`: user code that is not the recorded one."""

    def __init__(self, role: Role, wanted: Wanted, scratch: Scratch, turns: Turns, config: dict[str, Any], make: StandMaker,
                 stretch: Stretch, pace: float = 0.0, *, alone: bool = False) -> None:  # fmt: skip
        self._role, self._wanted, self._scratch, self._turns, self._config, self._make = role, wanted, scratch, turns, config, make
        self._stretch, self._alone = stretch, alone
        self._speed = pace
        self._clock: tuple[float, float] | None = None
        self._lives: dict[str, Life] = {}
        self.given = 0
        self.skipped = 0
        """Records that cannot be played: their session began before what is played, or their frames are gone."""
        self.code_differs: dict[str, tuple[str, str]] = {}

    def play(self, recording: Recording) -> Iterator[Pair]:
        """Pairs in the recorded order. Raises VersionGone, and whatever a stage stops at."""
        self._changed = frozenset(recording.dialect.changed)
        try:
            for moment in recording.moments():
                for sender in [sender for sender, role in recording.met.items() if role == self._role and sender not in self._lives]:
                    self._go_on(sender, recording.trained, moment.now)
                if self._is_over(moment.number, recording.state):
                    return
                yield from self._take(moment)
        finally:
            for life in self._lives.values():
                if life.stand is not None:
                    life.stand.close()

    def slowest(self, count: int) -> list[tuple[float, str]]:
        """Seconds now, and for what, the longest first; of records that were given alone."""
        return sorted((spent for life in self._lives.values() for spent in life.spent), reverse=True)[:count]

    def _is_over(self, number: int, state: State | None) -> bool:
        if not self._stretch.is_over(number, state):
            return False
        return state is None or not any(lease in state.leases for life in self._lives.values() for lease in life.leases)

    def _go_on(self, sender: str, trained: int, now: float) -> None:
        """A process whose hello stands before what is read."""
        hello = self._stretch.hellos.get(sender)
        self._begin(sender, trained if hello is None else hello.resume_step or 0, hello.user_code if hello is not None else {})
        for order in self._stretch.standing:
            if order.sender == sender:
                self._give(self._lives[sender], order.message, order.frames, now)

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
        life = self._lives[sender] = Life(sender, *keys, self._grants_itself, resume_step=resume_step, user_code=user_code)
        if self._wanted.is_everything:
            self._start(life, resume_step)

    def _start(self, life: Life, checkpoint: int = 0) -> Playable:
        if self._role is Role.ACTOR_TRAIN:
            self._scratch.bring_checkpoint(checkpoint)
            life.started_from = checkpoint
        welcome = Welcome(epoch=1, next_seq=1, config=self._config, run_directory=str(self._scratch.path))
        life.stand = self._make(welcome, life.client)
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
        life.hand(life.stand if life.stand is not None else self._start(life), order, frames)

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
        self._check_readable(header, frames[order.context :])
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
        if self._alone:
            life.hand_alone(life.stand if life.stand is not None else self._start(life), order, frames)
        else:
            self._hand(life, order, frames)

    def _check_readable(self, header: Header, frames: tuple[Frame, ...]) -> None:
        """A record of another schema that this version cannot make out is no input. Raises ReplayError."""
        if header.record in self._changed:
            with another_schema(subject_of(header)):
                decode_record(RECORDS[header.record], frames)

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

    def _install_now(self, life: Life, order: InstallOrder, frames: tuple[Frame, ...]) -> None:
        """A version that is gone is left out: a turn that needs it will say so."""
        if not self._scratch.has_version(decode_record(Install, frames).location):
            return
        life.versions.add(order.header.newest_version or 0)
        self._hand(life, order, self._scratch.moved(Install, frames))

    def _plan(self, life: Life, plan: Plan, frames: tuple[Frame, ...], now: float) -> None:
        if not self._wanted.takes_step(plan.step, now) and not self._leads_to_wanted(plan):
            return
        if life.stand is None:
            self._start(life, max(life.resume_step, max((step for step in self._scratch.checkpoints() if step < plan.step), default=0)))
        start = 0
        for header in plan.samples:
            self._check_readable(header, frames[start : start + len(header.frames)])
            start += len(header.frames)
        self._keep_pace(now)
        life.steps.add(plan.step)
        life.versions.add(plan.step)
        self.given += 1
        self._hand(life, plan, frames)

    def _leads_to_wanted(self, plan: Plan) -> bool:
        """A step before the first wanted one that no checkpoint spares."""
        first = self._stretch.first_step
        if first is None or plan.step >= first:
            return False
        return not any(plan.step <= step < first for step in self._scratch.checkpoints())

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
        if not self._is_expected(life, message, key) or lacks_frames(message, moment):
            return
        with another_schema(f"the recorded answer in entry {moment.number}"):
            answer = Answer(key, type(message).__name__, content_of(message, moment.frames))  # type: ignore[arg-type]
        yield Pair(life.client, moment.number, moment.now, life.subject(message, key), answer, life.answer(key))

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
