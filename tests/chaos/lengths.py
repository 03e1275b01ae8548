"""Whether what was trained is as long as what was issued: two samples of task lengths, compared. Pure.

The statistic is Kolmogorov and Smirnov's: the largest distance between the two distribution functions. Groups are counted,
not members, for members of a group share their task. Its critical value at level alpha is sqrt(-ln(alpha / 2) / 2) times
sqrt((n + m) / (n m)) (Smirnov 1948); for lengths, of which many are equal, it is on the safe side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 1e-4
"""One run in ten thousand without any bias would be accused."""


@dataclass(frozen=True)
class Comparison:
    """`distance` above `bound` says that lengths were not treated alike."""

    distance: float
    bound: float
    through: int
    issued: int

    @property
    def alike(self) -> bool:
        return self.distance <= self.bound

    def __str__(self) -> str:
        return f"lengths of {self.through} groups that came through against {self.issued} issued: distance {self.distance:.3f}, " \
               f"bound {self.bound:.3f} at {ALPHA:g}"  # fmt: skip


def compare(through: Sequence[int], issued: Sequence[int]) -> Comparison:
    """Raises ValueError for an empty sample."""
    if not through or not issued:
        raise ValueError("two samples are compared, one of them is empty")
    n, m = len(through), len(issued)
    one, other = Counter(through), Counter(issued)
    distance = below_one = below_other = 0.0
    for length in sorted({*one, *other}):
        below_one += one[length] / n
        below_other += other[length] / m
        distance = max(distance, abs(below_one - below_other))
    return Comparison(distance, math.sqrt(-math.log(ALPHA / 2) / 2) * math.sqrt((n + m) / (n * m)), n, m)
