"""Two answers, field by field: the first difference, and how far what is only rounded lies apart. Pure.

Everything is compared exactly but for what `TOLERANCES` names: log-probs, whose last bits depend on which turns shared a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

TOLERANCES: dict[str, float] = {"logprobs": 1e-4, "ref_logprobs": 1e-4}
"""Absolute, by field."""
METRIC_TOLERANCE = 1e-6
"""Relative, of a step's metrics."""
MISSING = "(nothing)"


class Difference(Struct, frozen=True):
    """`field` as a path, such as `puts[0].record.tokens[5]`."""

    field: str
    recorded: Any
    now: Any


class Comparison(Struct):
    """`rounded`: the largest distance of what lay within a tolerance, by field; 0 entries mean bit-equal."""

    differences: list[Difference]
    rounded: dict[str, float]


def compare(recorded: Any, now: Any) -> Comparison:
    """All differences, in the order of the fields; of a vector the first."""
    rounded: dict[str, float] = {}
    return Comparison(list(_walk("", recorded, now, rounded)), rounded)


def _walk(path: str, recorded: Any, now: Any, rounded: dict[str, float]) -> Iterator[Difference]:
    if isinstance(recorded, np.ndarray) and isinstance(now, np.ndarray):
        yield from _vectors(path, recorded, now, rounded)
    elif isinstance(recorded, dict) and isinstance(now, dict):
        for name in {**recorded, **now}:
            yield from _walk(f"{path}.{name}".lstrip("."), recorded.get(name, MISSING), now.get(name, MISSING), rounded)
    elif isinstance(recorded, list) and isinstance(now, list):
        for at in range(max(len(recorded), len(now))):
            one, other = (each[at] if at < len(each) else MISSING for each in (recorded, now))
            yield from _walk(f"{path}[{at}]", one, other, rounded)
    elif not _is_same(path, recorded, now, rounded):
        yield Difference(path, recorded, now)


def _is_same(path: str, recorded: Any, now: Any, rounded: dict[str, float]) -> bool:
    if type(recorded) is not type(now):
        return False
    if recorded == now or (recorded != recorded and now != now):
        return True
    if isinstance(recorded, float) and path.startswith("metrics."):
        distance = abs(recorded - now)
        if distance <= METRIC_TOLERANCE * max(abs(recorded), abs(now)):
            rounded[path] = max(rounded.get(path, 0.0), distance)
            return True
    return False


def _vectors(path: str, recorded: np.ndarray, now: np.ndarray, rounded: dict[str, float]) -> Iterator[Difference]:
    field = path.rpartition(".")[2]
    shared = min(len(recorded), len(now))
    unequal = np.flatnonzero(recorded[:shared] != now[:shared])
    if field in TOLERANCES and unequal.size:
        distances = np.abs(recorded[unequal].astype(np.float64) - now[unequal].astype(np.float64))
        within = distances <= TOLERANCES[field]
        if within.any():
            rounded[field] = max(rounded.get(field, 0.0), float(distances[within].max()))
        unequal = unequal[~within]
    if unequal.size:
        at = int(unequal[0])
        yield Difference(f"{path}[{at}]", recorded[at].item(), now[at].item())
    elif len(recorded) != len(now):
        longer = recorded if len(recorded) > len(now) else now
        value = longer[shared].item()
        yield Difference(f"{path}[{shared}]", *((value, MISSING) if longer is recorded else (MISSING, value)))
