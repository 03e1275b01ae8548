"""How far a long look is, on stderr: a bar where somebody looks at it, now and then a line where it goes into a file.

Nothing is said of what is over at once.
"""

from __future__ import annotations

import sys
import time

from tools.records.views import size_text

WIDTH = 30
BAR_AFTER_S, BAR_EVERY_S = 0.5, 0.1
LINE_EVERY_S = 10.0


class Bar:
    """Takes what `Progress` says. With `is_quiet` it keeps silent: a debugger has the terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet, self._is_drawn = is_quiet, sys.stderr.isatty()
        self._next = time.monotonic() + (BAR_AFTER_S if self._is_drawn else LINE_EVERY_S)
        self._is_shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Draws, ten times a second at most; a line every ten seconds."""
        if time.monotonic() < self._next or self._is_quiet:
            return
        part = min(1.0, done / total) if total else 1.0
        if not self._is_drawn:
            self._next = time.monotonic() + LINE_EVERY_S
            print(f"tidemill: {what}: {part:.0%} of {size_text(total)}", file=sys.stderr, flush=True)
            return
        self._next, self._is_shown = time.monotonic() + BAR_EVERY_S, True
        bar = f"[{'#' * int(part * WIDTH):<{WIDTH}}]"
        print(f"\r\x1b[K{what} {bar} {part:4.0%} of {size_text(total)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes it away, so that lines can be printed."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_shown = False
