"""The debugger of `--pdb`."""

from __future__ import annotations

import pdb  # noqa: T100 - a debugger is what is asked for
import sys
import threading
from types import TracebackType
from typing import Any

TERMINAL = threading.RLock()
"""Held by the debugger that speaks: an environment's sessions have one on a thread of their own."""


class Debugger(pdb.Pdb):
    """Enters a call (`runcall`, or the next one on this thread), or looks at where something was raised.

    `quitted`: a person has said `q` on a thread other than the main one.
    """

    def __init__(self) -> None:
        super().__init__(nosigint=True)
        self.quitted = False

    def enter_next_call(self) -> None:
        """Stops in the next function that this thread calls; a coroutine counts where it is awaited."""
        if not self.quitted:
            self.reset()
            sys.settrace(self.trace_dispatch)

    def interaction(self, *arguments: Any) -> None:
        with TERMINAL:
            super().interaction(*arguments)

    def look_at(self, traceback: TracebackType | None) -> bool:
        """Post mortem; True where a person has seen enough and said `q`."""
        self.reset()
        self.interaction(None, traceback)
        return bool(self.quitting)
