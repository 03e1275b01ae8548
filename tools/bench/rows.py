"""Measures the rows of a plan, one after the other, and gathers what the JSON file holds."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from tools.bench import machine
from tools.bench.compare import Comparison, Run, System, compare, run_load, spread, summary
from tools.bench.core_alone import core_alone, placement
from tools.bench.episode_codec import episode_costs
from tools.bench.load import Load
from tools.bench.plan import LOADS, MAIN_LOADS, SYSTEMS, Plan
from tools.bench.processes import Crew
from tools.bench.recovery import recovery
from tools.bench.sampling import Samples
from tools.bench.sessions import play
from tools.bench.systems import tidemill

Tick = Callable[[str], None]
"""Hears what is measured next, once a run."""
PROFILED = ("20kb", "200b_x16", "200b")


class Measuring:
    """One benchmark: the servers that are kept, the plan, and what was found so far."""

    def __init__(self, crew: Crew, plan: Plan, tick: Tick, keep: Callable[[dict[str, Any]], None]) -> None:
        """`keep` hears after each row what was found so far."""
        self._crew, self._plan, self._tick, self._keep = crew, plan, tick, keep
        self._kept: dict[str, System] = {}
        self.skipped = {name: why for name in plan.against if (why := SYSTEMS[name].missing()) is not None}
        self.comparisons: dict[str, Comparison] = {}
        self.rows: dict[str, Any] = {}

    def measure(self) -> dict[str, Any]:
        """All rows; returns what the JSON file holds."""
        before = machine.describe(self._crew.directory)
        for row in self._plan.rows:
            self.rows[row] = self._compare(row) if row in LOADS else OTHERS[row](self)
            self._keep(self._found(before))
        return self._found(before)

    def _found(self, before: dict[str, Any]) -> dict[str, Any]:
        return {
            "machine": {**before, "after": {**machine.noise(self._crew.directory)}}, "plan": msgspec.to_builtins(self._plan),
            "ratios": self.ratios(), "rows": dict(self.rows), "skipped": dict(self.skipped),
        }  # fmt: skip

    def ratios(self) -> dict[str, float]:
        """Medians over rounds, by `<system>_<load>`."""
        pairs = ((row, name) for row, found in self.comparisons.items() for name, values in found.ratios.items() if values)
        return {f"{name}_{row}": self.comparisons[row].ratio(name) for row, name in pairs}

    def others(self, row: str) -> list[str]:
        """Systems that this row compares with."""
        return [name for name in self._plan.against if name not in self.skipped and row in (SYSTEMS[name].loads or (row,))]

    def _compare(self, row: str) -> dict[str, Any]:
        load = replace(LOADS[row], seconds=self._plan.seconds, messages_max=self._plan.messages_max)
        makers: dict[str, Callable[[], System]] = {name: self._maker(name) for name in self.others(row)}
        rounds = self._plan.rounds if row in MAIN_LOADS else self._plan.side_rounds
        found = compare(lambda: tidemill.Server(self._crew), makers, load, rounds, self._run, lambda name: self._tick(f"{row}: {name}"))
        self.comparisons[row] = found
        self.skipped |= {name: f"{row}: {why}" for name, why in found.failed.items()}
        return summary(found)

    def _maker(self, name: str) -> Callable[[], System]:
        def make() -> System:
            return self._kept[name] if name in self._kept else SYSTEMS[name].make(self._crew)

        return make

    def _run(self, system: System, load: Load) -> Run:
        if system not in self._kept.values():
            system.start()
        if not system.fresh:
            self._kept.update({name: system for name, kind in SYSTEMS.items() if kind.make is type(system)})
        try:
            return run_load(self._crew, system, load)
        finally:
            if system.fresh:
                system.stop()
                shutil.rmtree(system.folder, ignore_errors=True)

    # --- rows of our broker alone -------------------------------------------------------------------------------------------

    def curve(self) -> list[dict[str, Any]]:
        """What encryption costs: our broker on a loopback port with and without, in turn; `ratio` is what is left of the rate."""
        found = []
        for name in MAIN_LOADS:
            load = replace(LOADS[name], seconds=self._plan.seconds, messages_max=self._plan.messages_max)
            runs = compare(lambda: tidemill.Curve(self._crew), {"tcp": lambda: tidemill.Tcp(self._crew)}, load, self._plan.side_rounds,
                           self._run, functools.partial(self._tick_of, f"curve: {name}"))  # fmt: skip
            found.append({"load": name, "ratio": spread(runs.ratios["tcp"]), **_both(runs)})
        return found

    def _tick_of(self, row: str, what: str) -> None:
        self._tick(f"{row} {what}")

    def cpu(self) -> dict[str, Any]:
        """Where the broker's processor time goes, per message."""
        found: dict[str, Any] = {}
        for name in PROFILED:
            self._tick(f"cpu: {name}")
            load = replace(LOADS[name], seconds=2 * self._plan.seconds, messages_max=self._plan.messages_max)
            samples = self._crew.directory / f"samples-{name}.json"
            server = tidemill.Server(self._crew, extra=("--samples", str(samples)))
            server.start()
            run = run_load(self._crew, server, load)
            server.stop_and_report()
            shutil.rmtree(server.folder, ignore_errors=True)
            found[name] = {**msgspec.to_builtins(run), **_split(msgspec.json.decode(samples.read_bytes(), type=Samples), run.messages)}
        return found

    def clients(self) -> list[dict[str, Any]]:
        """The loop of turns over 1 to 1,000 env connections."""
        found = []
        for count in self._plan.clients:
            self._tick(f"clients: {count}")
            figures, server = play(self._crew, count, self._plan.play_seconds)
            server.stop()
            shutil.rmtree(server.folder, ignore_errors=True)
            found.append(figures)
        return found

    def core(self) -> list[dict[str, Any]]:
        """Turns a second of the core alone."""
        found = []
        for count in self._plan.clients:
            self._tick(f"core: {count} clients")
            found.append(core_alone(self._crew.folder("core"), count, self._plan.core_seconds))
        return found

    def placement(self) -> dict[str, Any]:
        """What placing a turn costs in a large fleet."""
        self._tick("placement")
        return placement(self._crew.folder("core"), self._plan.replicas, self._plan.turns_in_flight, self._plan.core_seconds)

    def episode(self) -> dict[str, Any]:
        """Encoding and decoding of a 32k-token episode."""
        self._tick("episode")
        return episode_costs()

    def recovery(self) -> list[dict[str, Any]]:
        """Restart after kill -9 against the journal's size."""
        found = []
        for megabytes in self._plan.journal_megabytes:
            self._tick(f"recovery: {megabytes} MB")
            found.append(recovery(self._crew, megabytes))
        return found


def _both(runs: Comparison) -> dict[str, Any]:
    fields = {
        "rate": "per_second",
        "server_cpu_us": "server_cpu_us",
        "producer_cpu_us": "producer_cpu_us",
        "consumer_cpu_us": "consumer_cpu_us",
    }
    return {f"{label}_{name}": spread([getattr(run, field) for run in runs.runs[system]])
            for field, name in fields.items() for system, label in (("tcp", "tcp"), ("tidemill", "curve"))}  # fmt: skip


OTHERS: dict[str, Callable[[Measuring], Any]] = {
    "curve": Measuring.curve, "cpu": Measuring.cpu, "clients": Measuring.clients, "core": Measuring.core, "placement": Measuring.placement,
    "episode": Measuring.episode, "recovery": Measuring.recovery,
}  # fmt: skip


def _split(samples: Samples, messages: int) -> dict[str, Any]:
    """Microseconds a message. Samples share out the whole of the process's time, its sockets' threads apart."""
    total = max(1, sum(samples.parts.values()))
    spent = 1e6 * sum(samples.threads.values()) / messages
    threads = {name: 1e6 * seconds / messages for name, seconds in samples.threads.items()}
    share = {kind: {name: spent * count / total for name, count in sorted(getattr(samples, kind).items(), key=lambda item: -item[1])[:25]}
             for kind in ("parts", "frames")}  # fmt: skip
    return {"threads_us": threads, "parts_us": share["parts"], "frames_us": share["frames"]}


def steps_of(plan: Plan, measuring: Measuring) -> int:
    """How often `tick` will be called: the length of the progress bar."""
    count = 0
    for row in plan.rows:
        rounds = plan.rounds if row in MAIN_LOADS else plan.side_rounds
        lengths = {
            "curve": 3 * plan.side_rounds * len(MAIN_LOADS),
            "cpu": len(PROFILED),
            "clients": len(plan.clients),
            "core": len(plan.clients),
            "recovery": len(plan.journal_megabytes),
        }
        count += rounds * (1 + 2 * len(measuring.others(row))) if row in LOADS else lengths.get(row, 1)
    return count
