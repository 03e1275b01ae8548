"""Runs the broker, this machine's host and the lines to other hosts as children, watches them, shows the run, and ends everything.

Owns these processes (in sessions of their own, so that a terminal's Ctrl-C reaches only `tidemill up`) and the signal
handlers while it runs. Promises that after `run` no process of the run is left; if it is killed itself, the kernel ends
them. Does not know what a run is about. Main thread only.
"""

from __future__ import annotations

import math
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import zmq

from broker.keys import ClientKeys
from schemas.errors import WireError
from stages.host.children import Children, why_not_started
from stages.host.tether import PULSE_S
from tools.up.directory import CONFIG, FAILURE
from tools.up.ending import last_word
from tools.up.endpoint import reachable
from tools.up.link import BrokerLink
from tools.up.losses import Quarantine
from tools.up.snapshot import snapshot_of
from tools.up.view import View
from tools.up.watch import BROKER, HOST, AskStop, Finish, Order, Outcome, Start, Watch, how
from tools.up.ways import Way

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATUS_EVERY_S = 0.5
"""Often enough to look alive; the broker answers in microseconds."""
WORDS_MAX = 200
"""Characters shown of a process's last word."""
LEAVE_S = 1.0
"""After the broker's end its host, told to end before, gets so long to be gone, and as long again once asked."""
ALL_GONE_S = 4.7
"""From a Ctrl-C to the last kill, so that everything is gone within 5 s."""
LOSS, NO_LOSS = "--accept-loss", "--no-accept-loss"
"""The broker's argument: what this command says of `broker.accept_loss`, whatever stands in the run directory."""


@dataclass(frozen=True)
class Commands:
    """What to execute for each process; `hosts` by name."""

    broker: Sequence[str]
    hosts: Mapping[str, Way]
    broker_first: Sequence[str] = ()
    """What the broker is told besides, the first time alone."""

    @property
    def remote(self) -> frozenset[str]:
        """Hosts on other machines."""
        return frozenset(name for name, way in self.hosts.items() if way.is_remote)


def commands(directory: Path, endpoint: str, hosts: Mapping[str, Way] | None = None, *, accept_loss: bool = False) -> Commands:
    """Broker and host of this run, in this interpreter; or the given hosts.

    A loss is accepted by the first start alone: one that a crash brings later is for people to hear of.
    """
    # -P: a folder of the user's that is named like one of ours must not come before it.
    python = (sys.executable, "-P", "-m")
    broker = ("broker", "--run-directory", str(directory), "--config", str(directory / CONFIG), "--endpoint", endpoint, NO_LOSS)
    first = (LOSS,) if accept_loss else ()
    own = Way((*python, "stages.host", "--broker", reachable(endpoint), "--name", HOST))
    return Commands(broker=(*python, *broker), hosts=hosts or {HOST: own}, broker_first=first)


RUN_DIRECTORY = "run directory"
"""Who is blamed where the run's files are gone: its processes would go on for long, and leave nothing."""


class Supervisor:
    """One run of `tidemill up`, from the first process to the last."""

    def __init__(
        self, directory: Path, endpoint: str, commands: Commands, watch: Watch, view: View, keys: ClientKeys | None = None
    ) -> None:  # fmt: skip
        self._directory, self._commands, self._watch, self._view = directory, commands, watch, view
        self._children = Children(directory / "logs")
        self._link = BrokerLink(reachable(endpoint), keys=keys)
        self._signals: list[int] = []
        self._quarantine = Quarantine(directory / "journal")
        self._stopped_at: float | None = None
        self._next_status = self._next_pulse = 0.0
        self._broker_first = commands.broker_first
        self._left: set[str] = set()
        """Ended with exit code 0, and not started again so far."""
        self._told: dict[str, str] = {}
        """What was last said of a process that ended, by name: a machine that is away for an hour is told of once."""

    def run(self) -> Finish:
        """Until the run has ended, one way or another; then nothing of it is left."""
        try:
            with self._signals_caught() as signals:
                finish = self._watch_until_finish(signals)
                self._wind_down(finish)
        finally:
            self._children.close()
            self._link.close()
        return finish

    def last_lines(self, name: str) -> tuple[str, ...]:
        """The end of a process's log."""
        return self._children.last_lines(name)

    def _watch_until_finish(self, signals: socket.socket) -> Finish:
        poller = zmq.Poller()
        for source in (self._children.fileno(), self._link.socket, signals.fileno()):
            poller.register(source, zmq.POLLIN)
        orders: list[Order] = self._watch.begin()
        while True:
            finish = self._perform(orders)
            if finish is not None:
                return finish
            poller.poll(math.ceil(1000 * self._pause_s(time.monotonic())))
            orders = self._happened(signals)

    def _pause_s(self, now: float) -> float:
        due = self._watch.next_wake()
        return max(0.0, min(self._next_status, now + STATUS_EVERY_S if due is None else due) - now)

    def _happened(self, signals: socket.socket) -> list[Order]:
        """What exits, signals, answers and the time ask for."""
        orders: list[Order] = []
        self._look(time.monotonic())
        if not (self._directory / CONFIG).is_file():
            return [Finish(Outcome.FAILED, RUN_DIRECTORY, "was deleted under the run, and what it held is lost")]
        now = time.monotonic()
        for name, code in self._children.reap():
            explained = (self._directory / FAILURE).is_file()
            following = self._watch.exited(name, code, now, explained=explained)
            if not following and not self._watch.stopping and not self._watch.ending:
                if code:
                    self._tell(name, how(code))
                else:  # somebody told it to end, the broker of a failing run for example: then it is not started again
                    self._left.add(name)
            orders += following
        for _ in self._received(signals):
            self._stopped_at = now if self._stopped_at is None else self._stopped_at
            orders += self._watch.signalled(now, self._link.answered)
        return orders + self._watch.wake(now)

    def _tell(self, name: str, ended: str) -> None:
        """That a process ended, with its last word; of a line to another machine only if that is new."""
        word = last_word(self.last_lines(name))[:WORDS_MAX]
        text = f"{name} ended {ended}{f' ({word})' if word else ''}; it is started again"
        if not (word and name in self._commands.remote) or self._told.get(name) != text:
            self._view.note(text)
        self._told[name] = text

    def _look(self, now: float) -> None:
        """Takes the broker's answers, asks again when it is time."""
        try:
            statuses = self._link.statuses()
            if statuses:
                snapshot = snapshot_of(statuses[-1])
                self._watch.ending = snapshot.ending
                self._view.show(snapshot, self._children.living)
        except WireError as error:
            self._view.note(str(error))
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY_S
            self._link.ask_status(now)
            if lost := self._quarantine.news():
                self._view.note(lost)
        if now >= self._next_pulse:
            self._next_pulse = now + PULSE_S
            for name in self._commands.remote:
                self._children.say(name, b"\n")

    def _perform(self, orders: Sequence[Order]) -> Finish | None:
        for order in orders:
            match order:
                case Finish():
                    return order
                case AskStop():
                    self._view.note("ending the run: waiting for the ledger to close (once more ends it at once)")
                    self._link.ask_stop("signal")
                case Start():
                    try:
                        self._start(order.name)
                    except OSError as error:
                        return Finish(Outcome.FAILED, order.name, f"cannot be started: {why_not_started(error)}")
        return None

    def _start(self, name: str) -> None:
        if name in self._left:
            self._left.remove(name)
            self._tell(name, how(0))
        way = self._way_to_broker() if name == BROKER else self._commands.hosts[name]
        pid = self._children.start(name, way.command, first=way.orders)
        if name not in self._told:
            self._view.note(f"{name}: process {pid}")

    def _way_to_broker(self) -> Way:
        first, self._broker_first = self._broker_first, ()
        return Way((*self._commands.broker, *first))

    def _wind_down(self, finish: Finish) -> None:
        """Ends what is left: the host, usually on its way already, and with it all stages; else the broker too."""
        gone_by = (self._stopped_at if self._stopped_at is not None else time.monotonic()) + ALL_GONE_S
        if finish.outcome is Outcome.CUT_OFF:
            self._children.send(BROKER, signal.SIGKILL)  # a request to end would be journaled, and in the way of --resume
        self._children.hush()  # where the line is the input, its end is the host's
        if BROKER not in self._children.living:
            leave_by = min(gone_by, time.monotonic() + LEAVE_S)
            while self._children.living and (left_s := leave_by - time.monotonic()) > 0:
                list(self._children.reap(left_s))
        # The host is asked first even in a hurry: it then ends its stages, wherever they are in their lives.
        self._children.end_all(max(0.0, min(LEAVE_S, gone_by - time.monotonic())))

    @contextmanager
    def _signals_caught(self) -> Iterator[socket.socket]:
        """A socket that becomes readable on a signal; the handlers of before come back at the end."""
        ours, kernels = socket.socketpair()
        ours.setblocking(False)
        kernels.setblocking(False)
        before = {number: signal.signal(number, self._caught) for number in SIGNALS}
        wakeup = signal.set_wakeup_fd(kernels.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            ours.close()
            kernels.close()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _received(self, signals: socket.socket) -> list[int]:
        with suppress(BlockingIOError):
            signals.recv(4096)
        received, self._signals = self._signals, []
        return received
