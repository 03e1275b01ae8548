"""Waiting for something to come true, without guessing how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 40.0
"""Far above what anything here takes on a loaded machine: whoever waits this long has found a bug."""
PAUSE_S = 0.01


class NeverCameTrueError(AssertionError):
    """The wait is over; the text holds the story so far."""


def until(claim: Callable[[], object], what: str, story: Callable[[], object] = str, patience_s: float = PATIENCE_S) -> None:
    """Returns once `claim()` is true; raises with `story()` where that takes longer than `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not claim():
        if time.monotonic() > deadline:
            raise NeverCameTrueError(f"{what}: not within {patience_s:.0f} s; {story()}")
        time.sleep(PAUSE_S)
