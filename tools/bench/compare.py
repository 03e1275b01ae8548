"""One load over several systems, interleaved: ours, another, ours, another ..., ours.

A ratio is ours over the other's rate in the same round, ours taken as the mean of the runs before and after it; what is reported is the
median over rounds with its range. Absolute rates of a busy machine mean little; ratios of neighbours do.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from tools.bench.load import Job, Load, Side
from tools.bench.processes import BenchError, Crew, cpu_seconds

_channels = itertools.count(1)


class System(Protocol):
    """A server that the benchmark starts."""

    label: str
    client: str
    fresh: bool
    folder: Path
    endpoint: str
    keys: str
    process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Returns once clients may connect."""

    def stop(self) -> None:
        """Ends it."""


class Run(Struct, frozen=True, kw_only=True):
    """One run of one load on one system; microseconds of processor time are per message."""

    messages: int
    seconds: float
    rate: float
    """Messages a second, from the first sent to the last acknowledged by its consumer."""
    ack_p50_ms: float
    ack_p99_ms: float
    delivery_p50_ms: float
    delivery_p99_ms: float
    server_cpu_us: float
    producer_cpu_us: float
    consumer_cpu_us: float


def run_load(crew: Crew, system: System, load: Load) -> Run:
    """A producer and a consumer process on a server that is up."""
    channel = f"bench{next(_channels)}"
    sides = [_start(crew, Job(system=system.client, side=side, endpoint=system.endpoint, channel=channel, load=load, keys=system.keys))
             for side in ("consume", "produce")]  # fmt: skip
    try:
        before = cpu_seconds(system.process)
        for side in sides:
            _tell(side)
        consumer, producer = (_result(side, load) for side in sides)
        spent = cpu_seconds(system.process) - before
        for side in sides:
            _tell(side)
    finally:
        for side in sides:
            crew.end(side)
    return _run_of(producer, consumer, spent)


def _start(crew: Crew, job: Job) -> subprocess.Popen[bytes]:
    log = crew.directory / f"{job.channel}-{job.side}.log"
    process = crew.start([sys.executable, "-P", "-m", "tools.bench.worker", msgspec.json.encode(job).decode()], log, piped=True)
    line = _line(process)
    if line != b"ready\n":
        raise BenchError(f"{job.system}: the client that should {job.side} did not connect:\n{log.read_text()[-2000:]}")
    return process


def _line(process: subprocess.Popen[bytes]) -> bytes:
    return process.stdout.readline() if process.stdout else b""


def _tell(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.write(b"go\n")
        process.stdin.flush()


def _result(process: subprocess.Popen[bytes], load: Load) -> Side:
    line = _line(process)
    if not line:
        raise BenchError(f"{load.name}: a client process ended without a result: {process.args!r}")
    return msgspec.json.decode(line, type=Side)


def _run_of(producer: Side, consumer: Side, server_cpu: float) -> Run:
    count = consumer.messages
    seconds = max(producer.ended, consumer.ended) - producer.began
    return Run(
        messages=count, seconds=seconds, rate=count / seconds, ack_p50_ms=producer.p50_ms, ack_p99_ms=producer.p99_ms,
        delivery_p50_ms=consumer.p50_ms, delivery_p99_ms=consumer.p99_ms, server_cpu_us=1e6 * server_cpu / count,
        producer_cpu_us=1e6 * producer.cpu_seconds / count, consumer_cpu_us=1e6 * consumer.cpu_seconds / count,
    )  # fmt: skip


class Comparison(Struct, kw_only=True):
    """All runs of one load, by system's name; ours under `tidemill`."""

    load: Load
    runs: dict[str, list[Run]]
    ratios: dict[str, list[float]]
    """Ours over the other, one per round."""
    failed: dict[str, str] = {}
    """Systems that did not come up or whose clients ended, and why: they are left out from there on."""

    def ratio(self, name: str) -> float:
        """Median over rounds."""
        return statistics.median(self.ratios[name])


def compare(ours: Callable[[], System], others: dict[str, Callable[[], System]], load: Load, rounds: int,
            measure: Callable[[System, Load], Run], tick: Callable[[str], None]) -> Comparison:  # fmt: skip
    """`measure` runs the load on a system; `tick` hears of every run before it begins."""
    found = Comparison(load=load, runs={"tidemill": [], **{name: [] for name in others}}, ratios={name: [] for name in others})
    for number in range(rounds):
        order = _turned(list(others), number)
        tick("Tidemill")
        mine = [measure(ours(), load)]
        for name in order:
            tick(name)
            theirs = _measured(found, name, others[name], measure)
            tick("Tidemill")
            if theirs is None:
                continue
            mine.append(measure(ours(), load))
            found.runs[name].append(theirs)
            found.ratios[name].append((mine[-2].rate + mine[-1].rate) / 2 / theirs.rate)
        found.runs["tidemill"] += mine
    return found


def _measured(found: Comparison, name: str, make: Callable[[], System], measure: Callable[[System, Load], Run]) -> Run | None:
    """One run of another system; what ails it ends no benchmark."""
    if name in found.failed:
        return None
    try:
        return measure(make(), found.load)
    except BenchError as error:
        found.failed[name] = str(error)
        return None


def _turned(names: Sequence[str], by: int) -> list[str]:
    by %= max(1, len(names))
    return [*names[by:], *names[:by]]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(found: Comparison) -> dict[str, Any]:
    """For the JSON file: per system the medians and ranges of everything, and the ratios of each round."""
    fields = Run.__struct_fields__
    return {
        "load": msgspec.to_builtins(found.load),
        "systems": {
            name: {field: spread([getattr(run, field) for run in runs]) for field in fields} for name, runs in found.runs.items() if runs
        },
        "ratios": {name: {**spread(values), "rounds": values} for name, values in found.ratios.items() if values},
    }
