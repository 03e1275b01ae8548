"""A journal that keeps nothing: the yardstick of what durability costs. Never part of a broker that anyone runs."""

from __future__ import annotations

from collections.abc import Sequence

import broker.__main__ as program
import broker.driver as driver
from broker.core.events import Event
from broker.journal import Journal
from schemas.codec import Frame


class Nowhere(Journal):
    """Takes what a journal takes, and forgets it: no sum, no copy, no write, no writer, no checkpoint; all is "durable" at once."""

    _taken = 0

    def append(self, event: bytes, now: float, frames: Sequence[Frame] = ()) -> int:
        """Counts."""
        self._taken += 1
        return self._taken - 1

    @property
    def next_number(self) -> int:
        """Number of the event that comes next."""
        return self._taken

    @property
    def durable(self) -> int:
        """All that came."""
        return self._taken - 1

    def want(self, delay_s: float = 0.0) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        """Nothing to do."""

    def commit(self) -> int:
        """At once."""
        return self.durable

    @property
    def is_behind(self) -> bool:
        """Never."""
        return False

    @property
    def is_short(self) -> bool:
        """Never."""
        return False

    @property
    def checkpoint_due(self) -> bool:
        """Never."""
        return False


def _unsaid(event: Event) -> bytes:
    return b""


def without_journal() -> None:
    """Every broker that this process starts from here on is one without a journal."""
    vars(program)["Journal"] = Nowhere
    vars(driver)["encode_event"] = _unsaid  # encoding is part of what a journal costs
