"""The debugger of `--pdb`."""

from __future__ import annotations

import pdb  # noqa: T100 - a debugger is what is asked for
from types import TracebackType


class Debugger(pdb.Pdb):
    """Enters a call (`runcall`), or looks at where something was raised."""

    def look_at(self, traceback: TracebackType | None) -> None:
        """Post mortem."""
        self.reset()
        self.interaction(None, traceback)
