"""The one loop of every stage: hello, ready, lease, work, commit, drain, bye; heartbeats, counters and the reconnects in
between.

Owns the client and the leases a stage holds. Everything of a stage is called from this thread, so a heartbeat is proof
that its work goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import structlog
from msgspec.structs import replace

from broker.client import Client
from broker.keys import ClientKeys
from broker.pulse import Pulse
from schemas.codec import Frame, encode_record, make_header
from schemas.errors import NotServedError, TidemillError, WireError
from schemas.messages import (
    Abort,
    BrokerMessage,
    ClientMessage,
    Commit,
    Deliver,
    Drain,
    Drained,
    Failure,
    Hello,
    Refuse,
    StopProcess,
    Welcome,
)  # fmt: skip
from stages.service.lacking import Lacking
from stages.service.place import this_place
from stages.service.stage import Delivery, Put, Ready, Stage
from stages.service.strangers import what_is_at

IDLE_S = 0.5
"""Longest wait in one poll: heartbeats come on time, and so do time-outs inside stages."""
WAITS_FOR_DISK = "broker: room on its disk for what was put"
NO_BROKER_S = 5.0
"""After so long without one a person wants to know; a restart is over by then."""
DRAIN_S = 2.0
"""How long a stage may take to let go of its work once the broker has ended it all."""

REASON_CHARS = 200
"""Of an error that ends a stage, as `tidemill doctor` shows it."""

log = structlog.get_logger()


class NoBrokerError(TidemillError):
    """Nobody was there for longer than this process was told to wait."""


class NeverMetError(TidemillError):
    """As NoBrokerError, and this process has never met one: its address may be wrong."""


class HungError(TidemillError):
    """A stage whose own threads stand still for longer than the broker waits for a heartbeat."""


@runtime_checkable
class Watched(Protocol):
    """A stage whose work goes on in other threads: it says itself whether they move."""

    def responsive(self) -> bool: ...


class Loop:
    """Runs one stage against one broker. Is its stage's `Link`."""

    def __init__(self, stage: Stage, endpoint: str, name: str, host: str = "", keys: ClientKeys | None = None) -> None:
        self._stage, self._endpoint = stage, endpoint
        self._host = host
        self.prepare: Callable[[Welcome], Welcome] = lambda welcome: welcome
        """Before the stage's start: brings what the welcome names and this machine lacks; what it returns names it as it is here."""
        self.patience_s = 0.0
        """Seconds without a broker after which `run` gives up; 0: it waits for ever."""
        self._without_broker_s = 0.0
        self._lacking = Lacking()
        self._pulse = Pulse()
        self._client = Client(endpoint, stage.role, name, self._hello, keys)
        self._begun = self._started = False
        self._welcome: Welcome | None = None
        self._leases: set[int] = set()
        self._heartbeat_at = 0.0
        self._heartbeat_s = 1.0
        self._dead_s = 10.0
        self._hung_since: float | None = None
        self._draining_until: float | None = None
        self._busy_s = self._wait_s = 0.0
        self._pipeline = ""

    # --- Link ---------------------------------------------------------------------------------------------------------------

    @property
    def run_directory(self) -> str:
        """Where this run keeps its versions, checkpoints and logs."""
        assert self._welcome is not None, "asked before the welcome"
        return self._welcome.run_directory

    def commit(self, *, acks: Sequence[int] = (), puts: Sequence[Put] = (), fails: Sequence[Failure] = ()) -> None:
        """One unit of work, all or nothing."""
        headers, frames = [], []
        for put in puts:
            parts = encode_record(put.record)
            headers.append(make_header(put.record, parts, pipeline=self._pipeline, queue=put.queue, **put.fields))
            frames += parts
        self._leases.difference_update(acks, (failure.lease for failure in fails))
        self._client.send(Commit(acks=tuple(acks), puts=tuple(headers), fails=tuple(fails)), frames)

    def send(self, message: ClientMessage) -> None:
        """Any other message of the stage."""
        self._client.send(message)

    # --- the loop -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the broker sends the stage home. Raises BrokerRefusedError where it will not have it, NoBrokerError where none is there
        any more, NeverMetError where none ever was, NotServedError where files that it lacks never came."""
        self._lacking.patience_s = self.patience_s
        self._client.say_hello()
        more = False
        try:
            while not self._is_over():
                more = self._turn(0.0 if more else self._patience())
        finally:
            if self._begun:  # before, there was nothing to start with, and so nothing to close
                self._stage.close()
            self._client.close("run_end" if self._draining_until is not None else _why(sys.exception()))

    def _turn(self, timeout_s: float) -> bool:
        began = time.monotonic()
        if self._lacking.asks(began):
            self._client.say_hello()  # its welcome says who serves by now
        received = self._client.poll(timeout_s)
        polled = time.monotonic()
        self._look_for_broker(polled - began)
        self._wait_s += polled - began
        for message, frames in received:
            self._dispatch(message, frames)
        more = self._stage.work() if self._started else False
        self._busy_s += time.monotonic() - polled
        self._heartbeat()
        return more

    def _look_for_broker(self, waited_s: float) -> None:
        """Only waiting counts: while a stage loads its model, nobody looks whether the broker is there."""
        before = self._without_broker_s
        self._without_broker_s = 0.0 if self._client.at_home else before + waited_s
        if before <= NO_BROKER_S < self._without_broker_s:
            there = "nobody answers there" if self._welcome is not None else what_is_at(self._endpoint)
            log.warning("no_broker_yet", endpoint=self._endpoint, meaning=f"{there}; it is tried again until a broker answers")
        if self.patience_s and self._without_broker_s > self.patience_s:
            if self._welcome is None:
                there = what_is_at(self._endpoint)
                waited = f"waited for {self.patience_s:g} s, and {there}; is the address right, and does the broker run?"
                raise NeverMetError(f"nobody ever answered at {self._endpoint}: {waited}")
            raise NoBrokerError(f"no broker for {self.patience_s:g} s: the run is taken for over")

    def _patience(self) -> float:
        due_s = self._heartbeat_at - time.monotonic() if self._started else IDLE_S
        return max(0.0, min(IDLE_S, due_s))

    def _heartbeat(self) -> None:
        now = time.monotonic()
        if not self._started or now < self._heartbeat_at:
            return
        self._heartbeat_at = now + self._heartbeat_s
        if isinstance(self._stage, Watched) and not self._stage.responsive():
            self._withhold(now)
            return
        self._hung_since = None
        stats = {**self._stage.stats(), "busy_seconds": self._busy_s, "wait_seconds": self._wait_s, "cpu_seconds": time.process_time()}
        waiting = WAITS_FOR_DISK if self._client.awaits_disk else self._stage.waiting()
        self._client.heartbeat(stats, waiting)
        if self._client.at_home:
            self._pulse.beat(f"ready; waits {waiting}" if waiting else "ready, at work")

    def _withhold(self, now: float) -> None:
        """A hung stage says so once and renews nothing more; once the broker has given it up, it ends, so that its host starts another."""
        if self._hung_since is None:
            self._hung_since = now
            self._client.heartbeat({}, self._stage.waiting())
        log.warning("not_responsive", waiting=self._stage.waiting(), seconds=round(now - self._hung_since, 1))
        if now - self._hung_since > self._dead_s:
            seconds = f"{now - self._hung_since:.0f} s"
            raise HungError(f"{self._stage.waiting()}; nothing moved for {seconds}, so this process ends and is started anew")

    # --- what arrives -------------------------------------------------------------------------------------------------------

    def _hello(self, base: Hello) -> Hello:
        base = replace(base, host=self._host, place=this_place())
        if not self._started:
            return base
        ready: Ready = self._stage.hello()
        return replace(
            base, ready=True, windows=ready.windows, holds=tuple(sorted({*base.holds, *self._leases})), resume_step=ready.resume_step,
            step_in_hand=ready.step_in_hand, sessions=ready.sessions, installed=ready.installed, grants=ready.grants, slots=ready.slots,
            running=ready.running, user_code=ready.user_code, directory=ready.directory, roles=ready.roles,
            blobs=ready.blobs,
        )  # fmt: skip

    def _dispatch(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, Deliver):
            self._deliver(message, frames)
        elif isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, Drain):
            self._begin_to_drain(DRAIN_S)
        elif not isinstance(message, Refuse):
            if isinstance(message, Abort):
                self._leases.discard(message.lease)
            if isinstance(message, StopProcess) and not message.name:
                self._begin_to_drain(message.grace_s + DRAIN_S)
            self._stage.order(message, frames)

    def _on_welcome(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._heartbeat_s = welcome.heartbeat_s
        self._dead_s = welcome.config["broker"]["dead_s"]
        self._pipeline = welcome.config["pipeline"]["name"]
        if not self._started:
            prepared = self._prepared(welcome)
            if prepared is None:
                return
            self._begun = True
            self._stage.start(prepared, self)
            self._started = True
            wake = self._stage.wake_fd()
            if wake is not None:
                self._client.watch(wake)
            self._client.say_hello()
            return
        for lease in welcome.stale:
            self._leases.discard(lease)
            self._stage.order(Abort(lease=lease), ())

    def _prepared(self, welcome: Welcome) -> Welcome | None:
        """None where a file is lacking that nobody serves so far. Under a host that is a failure: it says so where restarts do not help."""
        try:
            prepared = self.prepare(welcome)
        except NotServedError as error:
            if self._host:
                raise
            if self._lacking.refused(error, time.monotonic()):
                log.warning("files_not_here_yet", error=str(error), meaning="it is asked for again until somebody serves it")
            self._client.heartbeat({}, self._lacking.waiting)
            return None
        self._lacking.come()
        return prepared

    def _deliver(self, order: Deliver, frames: Sequence[Frame]) -> None:
        self._leases.add(order.lease)
        try:
            delivery = Delivery(
                lease=order.lease, header=order.header, frames=tuple(frames[order.context :]), delivery=order.delivery,
                held_tokens=order.held_tokens, context=tuple(np.frombuffer(frame, np.int32) for frame in frames[: order.context]),
            )  # fmt: skip
            self._stage.deliver(delivery)
        except (WireError, ValueError) as error:
            log.warning("record_not_read", lease=order.lease, queue=order.header.queue, error=str(error))
            self.commit(fails=[Failure(lease=order.lease, boundary="wire", reason=str(error)[:200])])

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _begin_to_drain(self, within_s: float) -> None:
        self._draining_until = self._draining_until or time.monotonic() + within_s
        self._heartbeat_at = 0.0  # what it did since the last one counts too

    def _is_over(self) -> bool:
        if self._draining_until is None:
            return False
        if self._started and not self._stage.drained() and time.monotonic() < self._draining_until:
            return False
        self._client.send(Drained())
        return True


def _why(error: BaseException | None) -> str:
    """What others are told of an end: by what, where it was not a signal."""
    return f"stopped by {type(error).__name__}: {error}"[:REASON_CHARS] if isinstance(error, Exception) else "stopped"
