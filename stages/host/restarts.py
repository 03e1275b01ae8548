"""How often, and how soon, a dead process is started again.

Pure; used for stages by their host, for broker and host by `tidemill up`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class RestartPolicy(Struct, frozen=True, kw_only=True):
    """Back-off that doubles, and a limit within a window. Seconds, on whatever clock the caller reads."""

    limit: int = 5
    """Restarts within `window_s`; the next death is final."""
    window_s: float = 600.0
    first_s: float = 0.2
    most_s: float = 10.0

    def decide(self, history: Sequence[float], now: float) -> float | None:
        """Seconds until the next start, given the times of earlier restarts; None: not again."""
        recent = sum(now - at < self.window_s for at in history)
        if recent >= self.limit:
            return None
        # The exponent is bounded so that a large limit cannot overflow a float.
        return min(self.most_s, self.first_s * 2.0 ** min(recent, 64))
