"""Deltas over the versions of real runs: `tidemill up` trains the quickstart in a scratch directory, and what it published is compared.

A run in float32 is measured as published and cast to bfloat16, as a trainer with float32 master weights publishes it; a run in bfloat16 has
its weights, and its optimizer, in bfloat16. `share`: bytes of a delta over bytes of the whole file, mean over pairs of neighbours.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from stages.blobs.delta import apply_delta, regions_of, write_delta
from stages.blobs.outline import file_outline
from tools.bench.processes import HOUSE, BenchError, Crew

PIPELINE = HOUSE / "compose" / "pipelines" / "calculator.toml"
WEIGHTS = "model.safetensors"
RUN_SECONDS = 500.0


class Run(Struct, frozen=True, kw_only=True):
    """A training run whose versions are compared."""

    name: str
    dtype: str
    learning_rate: float | None = None
    """None: the quickstart's."""


RUNS = (
    Run(name="quickstart_rate", dtype="float32"),
    Run(name="rate_1e-6", dtype="float32", learning_rate=1e-6),
    Run(name="quickstart_rate_all_bfloat16", dtype="bfloat16"),
    Run(name="rate_1e-6_all_bfloat16", dtype="bfloat16", learning_rate=1e-6),
)


def measure_run(crew: Crew, run: Run, steps: int, tick: Callable[[str], None]) -> dict[str, Any]:
    """Trains, and compares each version with the one before. Raises BenchError where the run fails."""
    tick(f"training: {run.name}")
    directory = crew.folder("runs")
    _train(crew, run, steps, directory)
    found = sorted((directory / run.name / "versions").glob("0-*"), key=lambda path: int(path.name.partition("-")[2]))
    published = [path / WEIGHTS for path in found]
    if len(published) < 3:
        raise BenchError(f"the run {run.name} published {len(published)} versions")
    scratch = crew.folder("deltas")
    rows = {run.dtype: compare(published[1:], scratch)}
    if run.dtype == "float32":
        rows["bfloat16"] = compare([_cast(file, scratch / f"{index}.safetensors") for index, file in enumerate(published[1:])], scratch)
    return {"steps": len(published) - 1, "learning_rate": run.learning_rate, "versions": rows}


def _train(crew: Crew, run: Run, steps: int, directory: Path) -> None:
    wanted: dict[str, object] = {
        "run.directory": directory, "run.name": run.name, "schedule.steps": steps, "evaluation.problems": 16,
        "stages.weight_sync.keep_versions": steps + 2, "stages.actor_train.dtype": run.dtype, "stages.reference.dtype": run.dtype,
    }  # fmt: skip
    if run.learning_rate is not None:
        wanted |= {"algorithm.learning_rate": run.learning_rate, "algorithm.learning_rate_end": 1.0}
    overrides = itertools.chain.from_iterable(("--set", f"{key}={value}") for key, value in wanted.items())
    log = directory / "run.log"
    process = crew.start([sys.executable, "-P", "-m", "tools", "up", str(PIPELINE), *overrides], log)
    try:
        process.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        raise BenchError(f"the run {run.name} was not over within {RUN_SECONDS:.0f} s; its log: {log}") from None
    finally:
        crew.end(process, grace_s=10.0)  # politely: its stages write into the directory until they have ended
    if process.returncode:
        raise BenchError(f"the run {run.name} ended with {process.returncode}: {log.read_text(errors='replace')[-800:]}")


def _cast(file: Path, target: Path) -> Path:
    """The same tensors in bfloat16."""
    import torch
    from safetensors.torch import load_file, save_file

    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}, target)
    return target


def compare(files: list[Path], scratch: Path) -> dict[str, float]:
    """Deltas of neighbours, each made, applied and checked."""
    shares, made_s, applied_s, changed = [], [], [], []
    for old, new in itertools.pairwise(files):
        result = file_outline(new).digest
        began = time.perf_counter()
        written = write_delta(old, file_outline(old).digest, new, result, scratch / "delta")
        made_s.append(time.perf_counter() - began)
        whole = new.stat().st_size
        shares.append((written or whole) / whole)
        changed.append(_changed(old, new))
        if written is not None:
            applied_s.append(_applied(old, scratch / "delta", result, scratch / "made"))
    size = statistics.mean(file.stat().st_size for file in files) / 1e6
    spent = statistics.median(made_s) + (statistics.median(applied_s) if applied_s else 0.0)
    return {"pairs": len(shares), "share": statistics.mean(shares), "least": min(shares), "most": max(shares),
            "changed": statistics.mean(changed), "made_mb_s": size / statistics.median(made_s),
            "applied_mb_s": size / statistics.median(applied_s) if applied_s else 0.0,
            "pays_below_mb_s": size * (1 - statistics.mean(shares)) / spent}  # fmt: skip


def _applied(base: Path, delta: Path, result: str, target: Path) -> float:
    """Seconds; a delta that does not come out as it should raises BlobError."""
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT)
    began = time.perf_counter()
    apply_delta(base, delta, descriptor, result)
    seconds = time.perf_counter() - began
    os.close(descriptor)
    return seconds


def _changed(old: Path, new: Path) -> float:
    """Share of the numbers that differ."""
    differing, total = 0, 0
    with old.open("rb") as file:
        regions = regions_of(file)
    one, other = old.read_bytes(), new.read_bytes()
    for region in regions:
        size = region.end - region.start
        before, after = (np.frombuffer(data, np.uint8, size, region.start).reshape(-1, region.item_bytes) for data in (one, other))
        differing += int((before != after).any(axis=1).sum())
        total += size // region.item_bytes
    return differing / total
