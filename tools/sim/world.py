"""The world: a heap of events, a virtual clock, processes that are started, killed and restarted, messages on their way.

Owns time and the processes; runs the broker's real core through `tools/sim/driver.py`. Promises: the same scenario gives the same run,
event for event; messages of one connection stay in order; what is on its way when the broker dies is lost. No clock decides anything.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from broker.core.events import Started
from schemas.codec import Frame
from schemas.messages import BrokerMessage, ClientMessage, Numbered, StopAsked
from tools.sim.clients import FakeClient
from tools.sim.disk import Disk
from tools.sim.driver import Driver, Watch
from tools.sim.fleet import STAGE_KINDS, FakeHost
from tools.sim.laws import random_of
from tools.sim.result import Result, result_of
from tools.sim.scenario import BrokerKill, Cut, Kill, Scenario, resolved_config

HOST = "host-0"
RECONNECT_S = (0.0, 0.3)
"""Between a line's end, or the broker's return, and the next line."""


class Flight:
    """A message on its way to the broker."""

    __slots__ = ("line", "lost", "numbered")

    def __init__(self, line: int, *, numbered: bool) -> None:
        self.line, self.numbered, self.lost = line, numbered, False


class World:
    """One run. `watch` is called after every event of the broker; `keep` holds the run's journal in memory."""

    def __init__(self, scenario: Scenario, *, directory: Path | None = None, watch: Watch | None = None, keep: bool = False) -> None:
        self.scenario = scenario
        self.laws, self.seed = scenario.laws, scenario.seed
        self.now = 0.0
        self.disk = Disk()
        self.refusals: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._chance = random_of(scenario.seed, "network")
        self._processes: dict[str, FakeClient] = {}
        self._identities: dict[str, FakeClient] = {}
        self._latest: dict[str, Flight] = {}
        self.config = resolved_config(scenario)
        started = Started(config=self.config, run_directory=str(directory or "sim"))
        self.driver = Driver(self, started, directory=directory, keep=keep, watch=watch)
        self._begin()

    # --- time ---------------------------------------------------------------------------------------------------------------

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Calls at `when`, seconds; in the order of asking where times are equal."""
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, call))

    def run(self) -> Result:
        """To the end of the run, or of the time limit."""
        while self._heap and not self.driver.ended and self.now < self.scenario.time_limit_s:
            self.now, _, call = heapq.heappop(self._heap)
            call()
        return result_of(self)

    # --- processes ----------------------------------------------------------------------------------------------------------

    def resume(self) -> Result:
        """A stopped run is started again on its directory: a new broker, new processes, the old disk."""
        for process in self._processes.values():
            process.kill()
        self.driver.resume()
        self._start_processes()
        return self.run()

    def _start_processes(self) -> None:
        if self.scenario.hosts:
            self.spawn(HOST, "host")
            return
        for role, count in self.driver.state.settings.replicas.items():
            for index in range(count):
                self.spawn(f"{role}-{index}", role)

    def _begin(self) -> None:
        self._start_processes()
        for kill in self.scenario.faults.kills:
            self.at(kill.at, lambda kill=kill: self._kill(kill))  # type: ignore[misc]
        for cut in self.scenario.faults.cuts:
            self.at(cut.at, lambda cut=cut: self._cut(cut))  # type: ignore[misc]
        for death in self.scenario.faults.broker:
            self.at(death.at, lambda death=death: self._kill_broker(death))  # type: ignore[misc]

    def spawn(self, name: str, role: str, host: str = "", slots: tuple[str, ...] = ()) -> FakeClient:
        """Starts a process under this name; its incarnation is new."""
        self._order += 1
        incarnation = f"{self._order:016x}"
        rng = Random(random_of(self.seed, name, incarnation).random())
        process = (FakeHost if role == "host" else STAGE_KINDS[role])(self, name, incarnation, rng, host, slots)
        self._processes[name] = self._identities[process.identity] = process
        process.boot()
        return process

    def process(self, name: str) -> FakeClient | None:
        """The process of this name, alive or dead."""
        return self._processes.get(name)

    def _kill(self, kill: Kill) -> None:
        process = self._processes.get(kill.name)
        if process is None or not process.alive:
            return
        self.deaths[kill.name] += 1
        process.kill()
        self.exited(process, -9)
        restarted_by_host = process.host and kill.restart_after_s is not None
        if kill.restart_after_s is not None and not restarted_by_host:
            self.at(self.now + kill.restart_after_s, lambda: self.spawn(kill.name, process.role.value))

    def kill_now(self, name: str) -> None:
        """A host ends one of its processes."""
        process = self._processes.get(name)
        if process is not None and process.alive:
            process.kill()

    def exited(self, process: FakeClient, code: int) -> None:
        """A process is gone; its host, if it has one, sees it."""
        host = self._processes.get(process.host)
        if isinstance(host, FakeHost) and host.alive:
            host.child_exited(process.name, code)

    def _kill_broker(self, death: BrokerKill) -> None:
        if not self.driver.ended:
            self.deaths["broker"] += 1
            self.driver.kill(death.down_s)
            for process in self._processes.values():
                self._cut_line(process)

    def _cut(self, cut: Cut) -> None:
        process = self._processes.get(cut.name)
        if process is not None and process.connected:
            self.deaths[f"line of {cut.name}"] += 1
            self._cut_line(process)

    def _cut_line(self, process: FakeClient) -> None:
        if process.alive and process.connected:
            process.line_cut()
            self.connect(process)

    def connect(self, process: FakeClient) -> None:
        """The process's line comes up, after the back-off that reconnects have, once the broker listens."""
        line = process.line
        when = max(self.now, self.driver.up_at) + self._chance.uniform(*RECONNECT_S)

        def up() -> None:
            if process.alive and not process.connected and process.line == line:
                process.line_up() if self.driver.is_up else self.connect(process)

        self.at(when, up)

    def stop(self, reason: str) -> None:
        """Asks the run to end, as Ctrl-C does."""
        self.driver.receive("signal/0", StopAsked(reason=reason), ())

    # --- messages -----------------------------------------------------------------------------------------------------------

    def to_broker(self, client: FakeClient, message: ClientMessage, frames: Sequence[Frame]) -> None:
        """Arrives after the network's delay, unless the line is cut before; may be torn or doubled on its way."""
        faults = self.scenario.faults
        numbered = isinstance(message, Numbered)
        previous = self._latest.get(client.identity)
        if numbered and previous is not None and previous.numbered and self._chance.random() < faults.torn:
            previous.lost = True
        copies = 2 if numbered and self._chance.random() < faults.duplicated else 1
        for _ in range(copies):
            flight = self._latest[client.identity] = Flight(client.line, numbered=numbered)
            self.at(self.now + self.laws.network_s, lambda flight=flight: self._arrive(flight, client, message, frames))  # type: ignore[misc]

    def _arrive(self, flight: Flight, client: FakeClient, message: ClientMessage, frames: Sequence[Frame]) -> None:
        flight.numbered = False
        if flight.lost or flight.line != client.line or not self.driver.is_up:
            return
        self.driver.receive(client.identity, message, frames)

    def to_client(self, identity: str, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        """Arrives after the network's delay, unless the line is cut before or the process is gone."""
        process = self._identities.get(identity)
        if process is None or not process.connected:
            return
        line = process.line
        self.at(self.now + self.laws.network_s,
                lambda: process.receive(message, frames) if process.alive and line == process.line else None)  # fmt: skip


def simulate(scenario: Scenario, *, directory: Path | None = None, watch: Watch | None = None) -> Result:
    """Runs a scenario to its end; with `directory`, its journal is written there as a live run's would be."""
    world = World(scenario, directory=directory, watch=watch)
    try:
        return world.run()
    finally:
        world.driver.close()
