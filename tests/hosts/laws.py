"""What a line does to frames: pure, one direction at a time.

Promises that frames of one direction arrive in the order in which they came in, each after the law's delay or never; that
the same seed gives the same fate. Does not know devices, clocks, hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

QUEUE_S = 0.5
"""What a line of limited rate holds before it: later frames are dropped, as by any switch."""


@dataclass(frozen=True)
class Law:
    """One direction of a line. The default is a perfect one."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """At most so much is added to the delay, or taken away."""
    loss: float = 0.0
    """Share of frames that are lost, 0 to 1."""
    bytes_per_s: float = 0.0
    """0: without limit."""
    cut: bool = False
    """Nothing passes."""


@dataclass
class Direction:
    """A law at work. Times are the caller's `now`, in seconds."""

    chance: Random
    law: Law = Law()
    passed_bytes: int = 0
    lost: int = 0
    """Frames that will never arrive."""
    free_at: float = 0.0
    last_due: float = 0.0

    def due(self, size: int, now: float) -> float | None:
        """When a frame of `size` bytes that comes in at `now` leaves the line; None: never."""
        law = self.law
        if law.cut or (law.loss and self.chance.random() < law.loss) or self.free_at - now > QUEUE_S:
            self.lost += 1
            return None
        self.passed_bytes += size
        if law.bytes_per_s:
            self.free_at = max(self.free_at, now) + size / law.bytes_per_s
        delay = law.delay_s + self.chance.uniform(-law.jitter_s, law.jitter_s)
        self.last_due = max(self.last_due, max(self.free_at, now) + delay)
        return self.last_due
