"""Keeps one broker: starts it, shows its run, hands signals on, ends with it.

Owns the broker's process and the signal handlers while it runs. Promises that no process is left after `run`, and that the run itself
goes on in its directory whatever ended the broker, unless the broker said that it is over. Does not start it again: whoever started this
process does. Main thread only.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import zmq

from broker.keys import ClientKeys
from schemas.errors import TidemillError, WireError
from stages.host.children import Children, why_not_started
from tools.up.directory import CONFIG
from tools.up.endpoint import reachable
from tools.up.link import BrokerLink
from tools.up.losses import Quarantine
from tools.up.snapshot import snapshot_of
from tools.up.supervisor import LOSS, NO_LOSS
from tools.up.view import View

BROKER = "broker"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATUS_EVERY_S = 0.5
"""Often enough to look alive, and the longest that a signal waits to be handed on."""
LEAVE_S = 6.0
"""A broker that was asked to go writes down its state, usually within a second; containers are given ten before they are killed."""


def broker_command(directory: Path, endpoint: str, *, accept_loss: bool) -> Sequence[str]:
    """The broker of the run in `directory`, in this interpreter."""
    # -P: a folder of the user's that is named like one of ours must not come before it.
    places = ("--run-directory", str(directory), "--config", str(directory / CONFIG), "--endpoint", endpoint)
    return (sys.executable, "-P", "-m", "broker", *places, "--leave-on-sigterm", LOSS if accept_loss else NO_LOSS)


class NotStartedError(TidemillError):
    """This machine would not start the broker: what it said, and what to do."""


class Keeper:
    """See the module."""

    def __init__(self, directory: Path, endpoint: str, view: View, keys: ClientKeys | None, *, accept_loss: bool = False) -> None:
        self._command = broker_command(directory, endpoint, accept_loss=accept_loss)
        self._view = view
        self._children = Children(directory / "logs")
        self._link = BrokerLink(reachable(endpoint), name="serve", keys=keys)
        self._signals: list[int] = []
        self._quarantine = Quarantine(directory / "journal")
        self._kill_at: float | None = None
        self._next_status = 0.0
        self.step = 0
        """The last step that the broker told of."""

    def run(self) -> int:
        """The broker's exit code; -9 where signal 9 ended it. Raises NotStartedError."""
        try:
            with self._signals_caught():
                self._start()
                return self._attend()
        finally:
            self._children.close()
            self._link.close()

    def last_lines(self) -> tuple[str, ...]:
        """The end of the broker's log."""
        return self._children.last_lines(BROKER)

    def _start(self) -> None:
        try:
            self._children.start(BROKER, self._command)
        except OSError as error:
            raise NotStartedError(f"the {BROKER} cannot be started: {why_not_started(error)}") from error

    def _attend(self) -> int:
        poller = zmq.Poller()
        for source in (self._children.fileno(), self._link.socket):
            poller.register(source, zmq.POLLIN)
        while True:
            poller.poll(int(1000 * STATUS_EVERY_S))
            self._look(time.monotonic())
            self._hand_on(time.monotonic())
            for _, code in self._children.reap():
                return code

    def _look(self, now: float) -> None:
        try:
            statuses = self._link.statuses()
            if statuses:
                snapshot = snapshot_of(statuses[-1])
                self.step = snapshot.step
                self._view.show(snapshot, self._children.living)
        except WireError as error:
            self._view.note(str(error))
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY_S
            self._link.ask_status(now)
            if lost := self._quarantine.news():
                self._view.note(lost)

    def _hand_on(self, now: float) -> None:
        """The first signal asks the broker to leave; a second one, or its being late, kills it: the journal makes that safe."""
        received, self._signals = self._signals, []
        if received and self._kill_at is None:
            self._view.note("leaving: what is in flight stays so, and the same command goes on with it")
            self._kill_at = now + LEAVE_S
            self._children.send(BROKER, signal.SIGTERM)
        elif received or (self._kill_at is not None and now >= self._kill_at):
            self._children.send(BROKER, signal.SIGKILL)

    @contextmanager
    def _signals_caught(self) -> Iterator[None]:
        before = {number: signal.signal(number, lambda caught, _: self._signals.append(caught)) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
