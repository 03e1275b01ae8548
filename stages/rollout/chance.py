"""The random numbers of sampling: a pure function of (seed, position), so a turn's draws do not depend on its batch.

splitmix64 (Steele, Lea, Flood 2014): a counter is stepped by an odd constant and its bits are mixed. The seed is mixed
first, so that neighbouring seeds do not share draws. Knows no torch and no generator with a state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SEED_MASK = (1 << 64) - 1
BITS = 40
"""Of the hash that make a uniform: fine enough for any probability of interest, and never rounded up to 1."""
UNUSED = np.uint64(64 - BITS)


def uniforms(mixed_seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One draw in (0, 1) for each pair; arrays [N] of mixed_seed() values and session positions."""
    counters = mixed_seeds + (positions.astype(np.uint64) + np.uint64(1)) * GOLDEN
    return ((_mix(counters) >> UNUSED).astype(np.float64) + 0.5) * 2.0**-BITS


def mixed_seed(seed: int) -> np.uint64:
    """The form of a turn's seed that uniforms() takes; any Python integer, of which 64 bits count."""
    mixed: np.uint64 = _mix(np.array([seed & SEED_MASK], dtype=np.uint64))[0]
    return mixed


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Arrays only: numpy wraps their overflow silently, which is what is meant here, but warns for scalars."""
    values = (values ^ (values >> np.uint64(30))) * FIRST_FACTOR
    values = (values ^ (values >> np.uint64(27))) * SECOND_FACTOR
    return values ^ (values >> np.uint64(31))
