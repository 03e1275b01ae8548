"""The driver: turns sockets and time into events, hands them to the core, makes them durable, and carries the actions out.

One loop: take what arrived, journal and step each, send what has become durable. The journal's writer commits in the background; what an
event caused waits in the outbox until that event is on disk. An event that causes nothing to be sent (a heartbeat) opens no commit, mere
acknowledgements open one after a while, a tick every second. It decides nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from broker import letters
from broker.arena import Arena
from broker.core.access import forbidden
from broker.core.actions import Action, Detach, Forget, Keep, Note, Reply, Send, StepMetrics, Store
from broker.core.events import (
    Damaged,
    DiskFull,
    DiskOk,
    Event,
    Malformed,
    Received,
    Restarted,
    Revoked,
    Started,
    Tick,
    encode_event,
)
from broker.core.invariants import violations
from broker.core.state import Failed, State
from broker.core.step import begin, next_wake, step
from broker.intake import check_puts
from broker.journal import Journal
from broker.outbox import Outbox
from broker.recovery import encode_state, recover
from broker.refusals import Refusals
from broker.reports import Reports
from broker.status import status
from broker.transport import Transport
from broker.urgency import urgency
from schemas.codec import Frame, decode_client_message, encode_message
from schemas.errors import InvariantError, WireError
from schemas.header import Header
from schemas.messages import Bye, Commit, DeadAsked, DeadRetry, Hello, Refuse, Status, StatusAsked, StopAsked

GAUGE_SECONDS = 5.0
"""How often the live broker checks its own invariants: a few milliseconds each time."""
QUIET_NOTES = frozenset({"grouping", "admission", "installed", "evaluation_started"})
"""Decisions that come by the dozen: logged at debug level, in the journal anyway."""

REFUSALS_LOGGED = 20
"""Lines a tick about messages that nobody can read: a flood of those does not become a flood of lines."""
COMMIT_BATCH = 32
"""Events of one turn after which their commit is begun, while the rest is still being taken in."""
BEHIND_SECONDS = 0.1
"""How long the loop waits for a disk that has fallen behind, before it looks at the time again."""

FOR_ARENA = (Keep, Store, Forget, Detach)

log = structlog.get_logger()


class Driver:
    """Owns the state, the journal and the socket of one run."""

    def __init__(
        self, journal: Journal, transport: Transport, reports: Reports, started: Started, *, commit_batch: int = COMMIT_BATCH,
        accept_loss: bool = False,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._transport = transport
        self._reports = reports
        self._arena = Arena()
        self._outbox = Outbox(transport, reports)
        self.refusals = Refusals()
        """Read by the pages for people."""
        self._commit_batch = commit_batch
        self._identities: dict[str, tuple[str, bytes]] = {}
        """Incarnation and routing id, by client."""
        self._refused = 0
        """Messages refused at the door since the last tick."""
        self._unwanted = 0
        """Events whose commit is due and not yet asked for."""
        self.watchers: list[Callable[[], None]] = []
        """Called once a tick, by the thread that owns the state: they read it and are quick."""
        transport.watch(journal.wake)
        self._ended: Failed | None = None
        self._running = True
        self._began = time.monotonic()
        self._base = 0.0
        self._next_gauge = 0.0
        self._tick_at = 0.0
        self._stop_reason = ""
        self._state = self._recover(started, accept_loss)

    @property
    def state(self) -> State:
        """Read by reports and tests."""
        return self._state

    def now(self) -> float:
        """The broker's clock, seconds: starts at 0 with the run, stands still while no broker runs, never falls."""
        return self._base + time.monotonic() - self._began

    # --- recovery ---------------------------------------------------------------------------------------------------------

    def _recover(self, started: Started, accept_loss: bool) -> State:
        """Takes up what the journal holds; a new one begins with `started`."""
        found = recover(self._journal, self._arena, accept_loss=accept_loss)
        self._began = time.monotonic()
        if found is None:
            return self._begin(started)
        self._base, self._state = found.now, found.state
        self._handle(Restarted())
        if found.damaged:
            self._handle(Damaged(messages=found.damaged))
        self._journal.commit()  # whoever meets this broker meets one whose return is on disk
        if accept_loss:  # once is enough: behind a checkpoint the next start does not meet what was lost
            self._checkpoint()
            self._journal.finish_checkpoint()
        return found.state

    def _begin(self, started: Started) -> State:
        self._journal.append(encode_event(started), 0.0)
        self._journal.want()
        return begin(started, 0.0)

    # --- the loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> Failed | None:
        """Until the run has ended; returns why it failed, or None."""
        while self._running:
            self.turn()
        return self._ended

    def turn(self) -> None:
        """One turn of the loop: takes what arrived, or waits for it until the next tick."""
        for identity, frames in self._take_in():
            self._receive(identity, frames)
        if self._stop_reason:
            self._handle(Received(sender="broker/signal", message=StopAsked(reason=self._stop_reason)))
            self._stop_reason = ""
        if self._journal.is_short != self._state.disk_full:
            self._handle(DiskOk() if self._state.disk_full else DiskFull())
        if self.now() >= self._tick_at and not self._journal.is_behind:  # whom we do not read is not silent
            self._handle(Tick(late_s=self.now() - self._tick_at if self._tick_at else 0.0))
            self._show_out()
            self._gauge()
            for look in self.watchers:
                look()
            self._tick_at = next_wake(self._state, self.now())
            self._journal.want()
        self._want()
        self._release()
        if self._journal.checkpoint_due:
            self._checkpoint()

    def _show_out(self) -> None:
        """Whoever's key was revoked; and whoever does not read, for what it missed cannot be told from what it got."""
        if self._refused > REFUSALS_LOGGED:
            log.warning("refused_without_a_line_each", messages=self._refused - REFUSALS_LOGGED)
        self._refused = 0
        for key in self._transport.revoked():
            self._handle(Revoked(key=key))
        for identity in self._transport.take_choked():
            log.warning("does_not_read", sender=repr(identity[:80]))
            self._handle(Received(sender=identity.decode(errors="replace"), message=Bye(reason="does not read")), (), identity)

    def _take_in(self) -> list[tuple[bytes, list[Frame]]]:
        """What arrived; nothing while too much waits for the disk, so that memory stays bounded and clients wait instead."""
        if self._journal.is_behind:
            self._journal.pause(BEHIND_SECONDS)
            return []
        return self._transport.receive(self._tick_at - self.now())

    def stop(self, reason: str) -> None:
        """Ends the run as a client's `StopAsked` would; safe to call from a signal handler."""
        self._stop_reason = reason

    def leave(self) -> None:
        """Ends the loop but not the run: what is in flight stays so, and the next broker on this journal goes on with it. Safe to call from
        a signal handler."""
        self._running = False

    def _receive(self, identity: bytes, frames: list[Frame]) -> None:
        try:
            sender = identity.decode()
            message = decode_client_message(frames[0] if frames else b"")
        except (WireError, UnicodeDecodeError) as error:
            self._refuse(identity, str(error))
            return
        if isinstance(message, Commit):  # nine of ten messages
            self._commit(identity, sender, message, frames)
            return
        holder = self._transport.holder(identity)
        key, roles = ("", None) if holder is None else (holder.name, holder.roles)
        if isinstance(message, StatusAsked | DeadAsked) and (problem := forbidden(message, roles)):
            self._refuse(identity, problem, "forbidden")
            return
        if isinstance(message, StatusAsked):
            self._transport.send(identity, [encode_message(Status(body=status(self._state, self.now(), self.refusals.rows())))])
            return
        if isinstance(message, DeadAsked):
            self._transport.send(identity, self._letters(message))
            return
        if isinstance(message, Hello | StopAsked | DeadRetry):
            self._handle(Received(sender=sender, message=message, key=key, roles=roles), (), identity)
            return
        self._handle(Received(sender=sender, message=message), (), identity)

    def _letters(self, asked: DeadAsked) -> list[Frame]:
        found, message = letters.answer(self._state, asked, self.now())
        return [encode_message(found), *(self._arena.frames_kept(message) if message is not None else ())]

    def _commit(self, identity: bytes, sender: str, commit: Commit, frames: list[Frame]) -> None:
        """The short way of nine of ten messages."""
        records, puts = frames[1:], commit.puts
        try:
            check_puts(commit, records, len(frames[0]))
        except WireError as error:
            log.warning("bad_frames", sender=sender, detail=str(error))
            self._handle(Malformed(sender=sender, epoch=commit.epoch, seq=commit.seq, detail=str(error)), (), identity, puts)
            return
        now, event = self.now(), Received(sender=sender, message=commit)
        # Encoded anew, never the bytes that came: unknown fields in those may nest as deep as only this decoder bears.
        number = self._journal.append(encode_event(event), now, records)
        actions = step(self._state, event, now)
        self._carry_out(actions, puts, records, identity, number)
        self._hurry(0.0 if puts else urgency(event, actions))

    def _refuse(self, identity: bytes, detail: str, reason: str = "bad_message") -> None:
        self._refused += 1
        self.refusals.note(identity, reason)
        if self._refused <= REFUSALS_LOGGED:
            log.warning(reason, sender=repr(identity[:80]), detail=detail[:200])
        self._transport.send(identity, [encode_message(Refuse(reason=reason, detail=detail[:500], fatal=True))])

    def _handle(self, event: Event, frames: Sequence[Frame] = (), identity: bytes = b"", puts: tuple[Header, ...] = ()) -> None:
        """Journals, steps, and puts what is to be sent into the outbox. `frames` are those of a commit's `puts`."""
        now = self.now()
        number = self._journal.append(encode_event(event), now, frames)
        if isinstance(event, Received) and isinstance(event.message, Hello):
            self._outbox.asked(identity, event.message.deliveries)
        actions = step(self._state, event, now)
        self._carry_out(actions, puts, frames, identity, number)
        self._hurry(0.0 if puts else urgency(event, actions))

    def _carry_out(self, actions: list[Action], puts: tuple[Header, ...], frames: Sequence[Frame], identity: bytes, number: int) -> None:
        """In order: frames are looked up when their message is ordered, for a later action may forget them."""
        for action in actions:
            if isinstance(action, Send):
                if type(action.message) is Refuse:
                    self.refusals.note(self._identity(action.client), action.message.reason)
                self._outbox.post(number, self._identity(action.client), action.message, self._attached(action) if action.attach else ())
            elif isinstance(action, FOR_ARENA):
                self._arena.take(action, puts, frames, self._journal.last_position)
            elif isinstance(action, Reply):
                if type(action.message) is Refuse:
                    self.refusals.note(identity, action.message.reason)
                self._outbox.post(number, identity, action.message)
            elif isinstance(action, Note):
                (log.debug if action.kind in QUIET_NOTES else log.info)(action.kind, **action.numbers)
            elif isinstance(action, StepMetrics):
                self._outbox.report(number, action)
            else:
                self._ended, self._running = action.failure, False

    def _identity(self, client: str) -> bytes:
        incarnation = self._state.clients[client].incarnation
        known = self._identities.get(client)
        if known is None or known[0] != incarnation:
            known = self._identities[client] = (incarnation, f"{client}/{incarnation}".encode())
        return known[1]

    def _attached(self, action: Send) -> tuple[Frame, ...]:
        if len(action.attach) == 1:
            return self._arena.frames_of(action.attach[0])
        return tuple(frame for part in action.attach for frame in self._arena.frames_of(part))

    # --- durability ---------------------------------------------------------------------------------------------------------

    def _hurry(self, worth: float | None) -> None:
        """Asks for the commit that an event is worth."""
        if worth == 0.0:
            self._unwanted += 1
            if self._unwanted >= self._commit_batch:
                self._want()
        elif worth is not None:
            self._journal.want(worth)

    def _want(self) -> None:
        if self._unwanted:
            self._unwanted = 0
            self._journal.want()

    def _release(self) -> None:
        """Lets out what has become durable. Raises JournalError where the disk has failed."""
        self._journal.settle()
        self._outbox.release(self._journal.durable)

    def _checkpoint(self) -> None:
        self._journal.checkpoint(encode_state(self._state), self._arena.contents(), self.now())

    def _gauge(self) -> None:
        if self.now() < self._next_gauge:
            return
        self._next_gauge = self.now() + GAUGE_SECONDS
        broken = violations(self._state)
        if broken:
            raise InvariantError("; ".join(broken[:5]))

    def settle(self) -> None:
        """Waits until all is durable, and lets it out."""
        self._journal.commit()
        self._release()

    def close(self) -> None:
        """Journals what is left and what it amounts to; the last orders are sent."""
        self._checkpoint()
        self._journal.close()
        self._release()
        self._transport.close()
