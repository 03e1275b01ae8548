"""How fast a run goes, and how long the rest will take: pure."""

from __future__ import annotations

from collections import deque

RECENT_STEPS = 8
"""Steps over which the pace is taken: long enough to be calm, short enough to notice that episodes have grown longer.
"""


class Pace:
    """Seconds a step, from the moments at which new steps were seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS + 1)

    def saw(self, step: int, now: float) -> None:
        """`step` optimizer steps are done at `now`. The first takes the start of everything with it and says nothing."""
        if step and (not self._seen or step > self._seen[-1][0]):
            self._seen.append((step, now))

    def left_s(self, steps: int, now: float) -> float | None:
        """Seconds until `steps` are done; None until two moments are known."""
        if len(self._seen) < 2:
            return None
        (first, began), (last, came) = self._seen[0], self._seen[-1]
        each = (came - began) / (last - first)
        return max(0.0, (steps - last) * each - (now - came))
