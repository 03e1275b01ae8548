"""What a process waits for that was started before anybody serves the files that it lacks: when it asks again, and what it says. Pure."""

from __future__ import annotations

from schemas.errors import NotServedError

ASK_AGAIN_S = 2.0
"""A person who starts processes by hand starts the next one within seconds; a question costs the broker next to nothing."""


class Lacking:
    """`patience_s`: after so long it gives up; 0: never."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self.patience_s = patience_s
        self.waiting = ""
        """On what, in words; empty where nothing is lacking."""
        self._since: float | None = None
        self._ask_at: float | None = None

    def refused(self, error: NotServedError, now: float) -> bool:
        """Nobody has it so far. True where that is news. Raises NotServedError where it was waited for long enough."""
        self._since = now if self._since is None else self._since
        if self.patience_s and now - self._since >= self.patience_s:
            raise NotServedError(f"waited for {self.patience_s:g} s: {error}") from error
        before, self.waiting = self.waiting, f"on files: {error}"
        self._ask_at = now + ASK_AGAIN_S
        return self.waiting != before

    def come(self) -> None:
        """All is here."""
        self.waiting, self._since, self._ask_at = "", None, None

    def asks(self, now: float) -> bool:
        """Whether the broker is to be asked again who serves; true once for each answer."""
        if self._ask_at is None or now < self._ask_at:
            return False
        self._ask_at = None
        return True
