"""A journal that keeps nothing: the yardstick of what durability costs. Never part of a broker that anyone runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import broker.__main__ as program
import broker.driver as driver
from broker.core.events import Event
from broker.journal import Entry
from schemas.codec import Frame


class Nowhere:
    """Takes what a journal takes, and forgets it."""

    next_number = 0

    def __init__(self, directory: Path, segment_bytes: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    def read(self) -> Iterator[Entry]:
        """Nothing was kept."""
        return iter(())

    def append(self, event: bytes, now: float, frames: Sequence[Frame] = ()) -> int:
        """Counts."""
        self.next_number += 1
        return self.next_number - 1

    def commit(self) -> int:
        """At once."""
        return 0

    def close(self) -> None:
        """Nothing to close."""


def _unsaid(event: Event) -> bytes:
    return b""


def without_journal() -> None:
    """Every broker that this process starts from here on is one without a journal."""
    program.Journal = Nowhere  # type: ignore[misc, assignment]
    driver.encode_event = _unsaid  # encoding is part of what a journal costs
