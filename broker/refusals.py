"""How often whom was refused, and why: a figure for people and Prometheus, nothing that decides. Counts since this broker started.

Bounded: whoever says what cannot be read may do so under any name, so names after the first `NAMES_MAX` count together.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

NAMES_MAX = 256
"""Offenders told apart: far more than a run has processes that misbehave, and few enough for a page."""
NAME_CHARS = 80
OTHERS = "(others)"


class Refusals:
    """Counts by name of the client and reason."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._names: set[str] = set()

    def note(self, identity: bytes, reason: str) -> None:
        """`identity`: the routing id, `name/incarnation` of whoever keeps to the protocol."""
        name = identity.decode(errors="replace").split("/", 1)[0][:NAME_CHARS]
        if name not in self._names and len(self._names) >= NAMES_MAX:
            name = OTHERS
        self._names.add(name)
        self._counts[name, reason] += 1

    def rows(self) -> list[dict[str, Any]]:
        """`{client, reason, count}`, the most frequent first."""
        return [{"client": name, "reason": reason, "count": count} for (name, reason), count in self._counts.most_common()]
