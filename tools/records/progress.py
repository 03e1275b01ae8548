"""Who is told how far a long look is, and at what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from broker.journal_files import segment_paths

READING, SCANNING, FOLLOWING = "reading", "indexing, once", "following the broker, once"
"""What a long look is at: through a part of the journal, its headers, what the broker did with them."""

Progress = Callable[[str, int, int], None]
"""Told at what, bytes done and bytes in all."""


def sizes_of(journal: Path) -> dict[int, int]:
    """Bytes of the segments that are there, oldest first."""
    return {int(path.stem): path.stat().st_size for path in segment_paths(journal)}


class Way:
    """Through a journal, in bytes."""

    def __init__(self, sizes: Mapping[int, int], progress: Progress | None, what: str = READING) -> None:
        """`sizes`: of its segments, oldest first."""
        self._progress, self._what = progress, what
        self._before: dict[int, int] = {}
        self._total = 0
        for segment, size in sizes.items():
            self._before[segment] = self._total
            self._total += size

    def say(self, segment: int, offset: int) -> None:
        """It has come to there."""
        if self._progress is not None:
            self._progress(self._what, self._before.get(segment, 0) + offset, self._total)
