"""A file that says "ready, and at work": what a container's health check looks at.

Owns the file that `TIDEMILL_HEALTH` names; without that variable there is none. Promises: the file is there only since this process
became ready, is younger than a second or two while its own loop turns and the broker and it are in touch, and holds one line for people.
Age tells, not presence: a process that hangs or dies cannot take its file away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from schemas.errors import ConfigError

HEALTH_VARIABLE = "TIDEMILL_HEALTH"


class Pulse:
    """`beat` again and again. Raises ConfigError where the file cannot be written."""

    def __init__(self) -> None:
        named = os.environ.pop(HEALTH_VARIABLE, "")  # not handed down: the file is about this process alone
        self._file = Path(named) if named else None
        if self._file is not None:
            self._attempt(lambda file: file.unlink(missing_ok=True))  # an earlier process's

    def beat(self, words: str) -> None:
        """Alive and ready now; `words` say what is going on."""
        self._attempt(lambda file: file.write_text(f"{words}\n", encoding="utf-8"))

    def _attempt(self, act: Callable[[Path], object]) -> None:
        if self._file is None:
            return
        try:
            act(self._file)
        except OSError as error:
            raise ConfigError(
                f"{HEALTH_VARIABLE}={self._file}: cannot be written ({error.strerror}); name a file in a folder that can"
            ) from None
