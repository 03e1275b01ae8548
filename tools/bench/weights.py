"""`tidemill bench weights`: how fast weights cross between two machines, what encryption costs, what fan-out costs, what deltas save.

    ends    sender and receiver are processes, as on two machines; the link is this machine's loopback
    rounds  bare TCP, TCP to a file, bare ZeroMQ, the channel; the last two with CURVE: one after the other in each round, ratios within it
    deltas  versions of real runs, as the trainer published them and in bfloat16

Nothing is asserted; figures stand under `ratios`, with the machine beside them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from stages.blobs.outline import file_outline
from tools.bench.command import TERMINATED
from tools.bench.machine import describe
from tools.bench.processes import BenchError, Crew
from tools.bench.weights_delta import RUNS, Run, measure_run
from tools.bench.weights_ends import keys_for

MB = 1_000_000
PLAIN, CURVE = ("tcp", "disk", "zeromq", "channel"), ("zeromq", "channel")
HOSTS = 3
"""Caches that a version fans out to."""
STAGES_A_HOST = 2
"""Processes of each that ask for it."""


class WeightsPlan(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    megabytes: int = 200
    rounds: int = 5
    runs: tuple[Run, ...] = RUNS
    steps: int = 12


FULL = WeightsPlan()
QUICK = WeightsPlan(rounds=2, steps=4)


def bench_weights(json_file: Path | None, *, quick: bool) -> None:
    """Measures, shows, writes."""
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(width=None if sys.stdout.isatty() else 160)
    found = measure(QUICK if quick else FULL, console)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2) + "\n")
    show(found, console)


def _terminated(_: int, __: object) -> None:
    raise SystemExit(TERMINATED)


def measure(plan: WeightsPlan, console: Console) -> dict[str, Any]:
    """Runs the plan under a progress bar; returns what the JSON file holds."""
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    steps = plan.rounds * (len(PLAIN) + len(CURVE)) + 1 + len(plan.runs)
    with Crew() as crew, Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=steps)

        def tick(what: str) -> None:
            progress.update(bar, description=what, advance=1)

        machine = describe(crew.directory)
        link = Link(crew, plan.megabytes)
        rates = link.rounds(plan.rounds, tick)
        tick(f"fan-out to {HOSTS} machines")
        fan_out = link.fan_out()
        link.close()
        deltas = {run.name: measure_run(crew, run, plan.steps, tick) for run in plan.runs}
    return {"ratios": _ratios(rates, fan_out, deltas), "rates_mb_s": rates, "fan_out": fan_out, "deltas": deltas, "machine": machine,
            "megabytes": plan.megabytes}  # fmt: skip


class Link:
    """Senders of one file on the loopback, one of each kind."""

    def __init__(self, crew: Crew, megabytes: int) -> None:
        self._crew = crew
        self._folder = crew.folder("weights")
        self._log = self._folder / "ends.log"
        self._file = self._folder / "model.safetensors"
        self._file.write_bytes(np.random.default_rng(0).integers(0, 256, megabytes * MB, np.uint8).tobytes())
        self._digest = file_outline(self._file).digest
        self._environment = keys_for(self._folder / "keys")
        self._senders: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        for name in (*PLAIN, *(f"{kind}+curve" for kind in CURVE)):
            self._senders[name] = self._sender(name)

    def _sender(self, name: str) -> tuple[subprocess.Popen[bytes], str]:
        kind, _, keys = name.partition("+")
        command = [sys.executable, "-P", "-m", "tools.bench.weights_ends", "send", kind, str(self._file)]
        process = self._crew.start(command + ([str(self._folder / "keys")] if keys else []), self._log, piped=True)
        return process, _line(process, self._log)

    def rounds(self, count: int, tick: Callable[[str], None]) -> dict[str, list[float]]:
        """MB/s of each kind, by round. The first fetch, in which the server reads the file through for its digest, is not counted."""
        for name in ("channel", "channel+curve"):
            self.copy(name)
        rates: dict[str, list[float]] = {name: [] for name in self._senders}
        for index in range(count):
            for name in self._senders:
                tick(f"round {index + 1}: {name}")
                seconds, done = self.copy(name)
                if done != self._file.stat().st_size:
                    raise BenchError(f"{name}: {done} bytes of {self._file.stat().st_size} came")
                rates[name].append(done / seconds / MB)
        return rates

    def copy(self, name: str) -> tuple[float, int]:
        """Seconds and bytes of one copy."""
        scratch = self._crew.folder("cache")
        found = self._result(self._receiver(name, scratch))
        shutil.rmtree(scratch)
        return found

    def _result(self, process: subprocess.Popen[bytes]) -> tuple[float, int]:
        """Gives the word and waits for the outcome."""
        said, _ = process.communicate(b"go\n")
        words = said.decode().split()
        if len(words) < 2 or process.returncode:
            raise BenchError(f"a receiver ended with {process.returncode}: {self._log.read_text(errors='replace')[-800:]}")
        return float(words[-2]), int(words[-1])

    def _receiver(self, name: str, scratch: Path) -> subprocess.Popen[bytes]:
        """Loaded, and waiting for the word."""
        kind, _, keys = name.partition("+")
        size = str(self._file.stat().st_size)
        arguments = ["receive", kind, self._senders[name][1], self._digest, size, str(self._file), str(scratch)]
        command = [sys.executable, "-P", "-m", "tools.bench.weights_ends", *arguments]
        process = self._crew.start(command, self._log, self._environment if keys else None, piped=True)
        _line(process, self._log)
        return process

    def fan_out(self) -> dict[str, float]:
        """To several machines at once, on each of which several processes ask: seconds, and bytes that crossed for each machine."""
        caches = [self._crew.folder(f"host-{index}") for index in range(HOSTS)]
        alone, size = self.copy("channel+curve")
        receivers = [self._receiver("channel+curve", cache) for cache in caches for _ in range(STAGES_A_HOST)]
        for process in receivers:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        results = [self._result(process) for process in receivers]
        return {"hosts": HOSTS, "stages_a_host": STAGES_A_HOST, "seconds": max(seconds for seconds, _ in results), "seconds_alone": alone,
                "bytes_a_host": sum(done for _, done in results) / HOSTS, "file_bytes": size}  # fmt: skip

    def close(self) -> None:
        for process, _ in self._senders.values():
            self._crew.end(process, grace_s=0.0)
        self._file.unlink()


def _line(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    if not line:
        raise BenchError(f"{log.stem} ended: {log.read_text(errors='replace')[-500:]}")
    return line


def _ratios(rates: dict[str, list[float]], fan_out: dict[str, float], deltas: dict[str, dict[str, Any]]) -> dict[str, float]:
    def share(ours: str, theirs: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[ours], rates[theirs], strict=True))

    ratios = {
        "weights_of_tcp": share("channel", "tcp"),
        "weights_of_tcp_to_disk": share("channel", "disk"),
        "weights_of_zeromq": share("channel", "zeromq"),
        "weights_curve_of_zeromq_curve": share("channel+curve", "zeromq+curve"),
        "weights_curve_of_plain": share("channel+curve", "channel"),
        "weights_bytes_a_host_of_file": fan_out["bytes_a_host"] / fan_out["file_bytes"],
        "weights_fan_out_of_one_after_another": HOSTS * fan_out["seconds_alone"] / fan_out["seconds"],
    }
    for name, found in deltas.items():
        ratios |= {f"delta_of_full_{name}_{dtype}": row["share"] for dtype, row in found["versions"].items()}
    return ratios


def show(found: dict[str, Any], console: Console) -> None:
    """Tables for people."""
    load = " ".join(f"{value:.1f}" for value in found["machine"]["load_average"])
    console.print(f"{found['machine']['cores']} cores, {os.uname().release}; load {load}; {found['megabytes']} MB over the loopback")
    table = Table(title="Copies", title_justify="left")
    for column in ("kind", "MB/s", "range"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for name, rates in found["rates_mb_s"].items():
        table.add_row(name, f"{statistics.median(rates):.0f}", f"{min(rates):.0f} to {max(rates):.0f}")
    console.print(table)
    console.print(_deltas(found["deltas"]))
    ratios = Table(title="Ratios", title_justify="left")
    ratios.add_column("name")
    ratios.add_column("median", justify="right")
    for name, value in found["ratios"].items():
        ratios.add_row(name, f"{value:.3f}")
    console.print(ratios)


def _deltas(deltas: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Deltas against whole versions", title_justify="left")
    for column in ("run", "versions as", "pairs", "share", "range", "changed numbers", "made MB/s", "applied MB/s", "pays below MB/s"):
        table.add_column(column, justify="left" if column in ("run", "versions as") else "right")
    for name, found in deltas.items():
        for dtype, row in found["versions"].items():
            speeds = [f"{row[key]:.0f}" for key in ("made_mb_s", "applied_mb_s", "pays_below_mb_s")]
            shares = [f"{row['share']:.3f}", f"{row['least']:.3f} to {row['most']:.3f}", f"{row['changed']:.4f}"]
            table.add_row(name, dtype, str(row["pairs"]), *shares, *speeds)
    return table
