"""The driver: turns sockets and time into events, hands them to the core, makes them durable, and carries the actions out.

One loop: take what arrived, journal and step each, then one group commit, then send. Nothing that an event caused leaves before that event is
on disk; events that cause nothing to be sent (heartbeats, credits) wait for the next commit or tick. It decides nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from broker.arena import Arena
from broker.core.actions import Action, EndRun, Note, Reply, Send, StepMetrics
from broker.core.events import Event, Malformed, Received, Restarted, Started, Tick, decode_event, encode_event
from broker.core.invariants import violations
from broker.core.state import Failed, State
from broker.core.step import begin, next_wake, step
from broker.journal import Journal
from broker.reports import Reports
from broker.status import status
from broker.transport import Transport
from schemas.codec import Frame, check_header, decode_client_message, encode_message
from schemas.errors import InvariantError, JournalError, WireError
from schemas.header import Header
from schemas.messages import ClientMessage, Commit, Refuse, Status, StatusAsked, StopAsked

GAUGE_SECONDS = 5.0
"""How often the live broker checks its own invariants: a few milliseconds each time."""
QUIET_NOTES = frozenset({"grouping", "admission", "installed", "evaluation_started"})
"""Decisions that come by the dozen: logged at debug level, in the journal anyway."""

log = structlog.get_logger()


class Driver:
    """Owns the state, the journal and the socket of one run."""

    def __init__(self, journal: Journal, transport: Transport, reports: Reports, started: Started) -> None:
        self._journal = journal
        self._transport = transport
        self._reports = reports
        self._arena = Arena()
        self._outbox: list[tuple[bytes, list[Frame]]] = []
        self._ended: Failed | None = None
        self._running = True
        self._began = time.monotonic()
        self._base = 0.0
        self._next_gauge = 0.0
        self._tick_at = 0.0
        self._stop_reason = ""
        self._state = self._recover(started)

    @property
    def state(self) -> State:
        """Read by reports and tests."""
        return self._state

    def now(self) -> float:
        """The broker's clock, seconds: starts at 0 with the run, stands still while no broker runs, never falls."""
        return self._base + time.monotonic() - self._began

    # --- recovery ---------------------------------------------------------------------------------------------------------

    def _recover(self, started: Started) -> State:
        """Folds the journal; a new one begins with `started`."""
        state: State | None = None
        began = time.monotonic()
        for entry in self._journal.read():
            event = decode_event(entry.event)
            self._base = entry.now
            if isinstance(event, Started):
                state = begin(event, entry.now)
                continue
            if state is None:
                raise JournalError("the journal does not begin with a run's start; was its first segment removed?")
            for action in step(state, event, entry.now):
                self._arena.take(action, puts_of(event), entry.frames)
        self._began = time.monotonic()
        if state is None:
            return self._begin(started)
        log.info("recovered", entries=self._journal.next_number, seconds=round(time.monotonic() - began, 3), phase=state.phase.value)
        self._state = state
        self._handle(Restarted())
        return state

    def _begin(self, started: Started) -> State:
        self._journal.append(encode_event(started), 0.0)
        return begin(started, 0.0)

    # --- the loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> Failed | None:
        """Until the run has ended; returns why it failed, or None."""
        while self._running:
            self.turn()
        return self._ended

    def turn(self) -> None:
        """One turn of the loop: takes what arrived, or waits for it until the next tick."""
        for identity, frames in self._transport.receive(self._tick_at - self.now()):
            self._receive(identity, frames)
        if self._stop_reason:
            self._handle(Received(sender="broker/signal", message=StopAsked(reason=self._stop_reason)))
            self._stop_reason = ""
        tick_due = self.now() >= self._tick_at
        if tick_due:
            self._handle(Tick())
            self._gauge()
            self._tick_at = next_wake(self._state, self.now())
        self._flush(force=tick_due)

    def stop(self, reason: str) -> None:
        """Ends the run as a client's `StopAsked` would; safe to call from a signal handler."""
        self._stop_reason = reason

    def _receive(self, identity: bytes, frames: list[bytes]) -> None:
        try:
            sender = identity.decode()
            message = decode_client_message(frames[0] if frames else b"")
        except (WireError, UnicodeDecodeError) as error:
            self._refuse(identity, str(error))
            return
        if isinstance(message, StatusAsked):
            self._transport.send(identity, [encode_message(Status(body=status(self._state, self.now())))])
            return
        self._handle(self._event(sender, message, frames[1:]), frames[1:], identity)

    def _event(self, sender: str, message: ClientMessage, frames: list[bytes]) -> Event:
        if not isinstance(message, Commit):
            return Received(sender=sender, message=message)
        try:
            check_puts(message, frames)
        except WireError as error:
            log.warning("bad_frames", sender=sender, detail=str(error))
            return Malformed(sender=sender, epoch=message.epoch, seq=message.seq, detail=str(error))
        return Received(sender=sender, message=message)

    def _refuse(self, identity: bytes, detail: str) -> None:
        log.warning("bad_message", sender=repr(identity[:80]), detail=detail[:200])
        self._transport.send(identity, [encode_message(Refuse(reason="bad_message", detail=detail[:500], fatal=True))])

    def _handle(self, event: Event, frames: Sequence[bytes] = (), identity: bytes = b"") -> None:
        """Journals, steps, and puts what is to be sent into the outbox."""
        now = self.now()
        kept = frames if isinstance(event, Received) and isinstance(event.message, Commit) else ()
        self._journal.append(encode_event(event), now, kept)
        actions = step(self._state, event, now)
        self._carry_out(event, actions, kept, identity)

    def _carry_out(self, event: Event, actions: list[Action], frames: Sequence[bytes], identity: bytes) -> None:
        """In order: frames are looked up when their message is ordered, for a later action may forget them."""
        puts = puts_of(event)
        for action in actions:
            if isinstance(action, Send):
                self._outbox.append((self._identity(action.client), self._frames(action)))
            elif isinstance(action, Reply):
                self._outbox.append((identity, [encode_message(action.message)]))
            elif isinstance(action, Note):
                (log.debug if action.kind in QUIET_NOTES else log.info)(action.kind, **action.numbers)
            elif isinstance(action, StepMetrics):
                self._reports.step(action.step, action.metrics)
            elif isinstance(action, EndRun):
                self._ended, self._running = action.failure, False
            else:
                self._arena.take(action, puts, frames)

    def _identity(self, client: str) -> bytes:
        return f"{client}/{self._state.clients[client].incarnation}".encode()

    def _frames(self, action: Send) -> list[Frame]:
        return [encode_message(action.message), *(frame for part in action.attach for frame in self._arena.frames_of(part))]

    def _flush(self, *, force: bool = False) -> None:
        """One group commit, then everything that waited for it."""
        if self._outbox or force:
            try:
                self._journal.commit()
            except OSError as error:
                raise JournalError(f"the journal cannot be written ({error.strerror}); free the disk and start the run again") from error
        for identity, frames in self._outbox:
            self._transport.send(identity, frames)
        self._outbox.clear()

    def _gauge(self) -> None:
        if self.now() < self._next_gauge:
            return
        self._next_gauge = self.now() + GAUGE_SECONDS
        broken = violations(self._state)
        if broken:
            raise InvariantError("; ".join(broken[:5]))

    def close(self) -> None:
        """Journals what is left; the last orders are sent."""
        self._flush(force=True)
        self._journal.close()
        self._transport.close()


def puts_of(event: Event) -> tuple[Header, ...]:
    """Headers of the records that an event carries."""
    if isinstance(event, Received) and isinstance(event.message, Commit):
        return event.message.puts
    return ()


def check_puts(commit: Commit, frames: Sequence[Frame]) -> None:
    """Raises WireError where `frames` are not exactly those that the headers describe."""
    if sum(len(header.frames) for header in commit.puts) != len(frames):
        raise WireError(f"{len(frames)} frames follow; the headers describe {sum(len(h.frames) for h in commit.puts)}")
    start = 0
    for header in commit.puts:
        check_header(header, frames[start : start + len(header.frames)])
        start += len(header.frames)
