"""Who is told how far a long look is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all."""


class Way:
    """Through a journal, in bytes."""

    def __init__(self, sizes: Mapping[int, int], progress: Progress | None) -> None:
        """`sizes`: of its segments, oldest first."""
        self._progress = progress
        self._before: dict[int, int] = {}
        self._total = 0
        for segment, size in sizes.items():
            self._before[segment] = self._total
            self._total += size

    def say(self, segment: int, offset: int) -> None:
        """It has come to there."""
        if self._progress is not None:
            self._progress(self._before.get(segment, 0) + offset, self._total)
