"""Which versions' directories may go.

A version stays while it is the starting model (the reference, and a retrained step after a restart, need it), while
it is among the newest `keep_versions`, or while a token that it sampled may still be trained: up to `max_lag`
versions behind, and one for the version that is being installed. What the trainer's newer history has not reached
again stays too: a number above the newest is of a lost history, and goes once the new one has passed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class VersionName:
    """A directory's name, `<lineage>-<number>`."""

    lineage: int
    number: int

    def __str__(self) -> str:
        return f"{self.lineage}-{self.number}"


def version_name(text: str) -> VersionName | None:
    """None where `text` is not the name of a version's directory."""
    lineage, dash, number = text.partition("-")
    decimal = dash and lineage.isascii() and lineage.isdecimal() and number.isascii() and number.isdecimal()
    return VersionName(int(lineage), int(number)) if decimal else None


def doomed(present: Iterable[VersionName], newest: int, keep_versions: int, max_lag: int) -> list[VersionName]:
    """Directories to delete, oldest first, once version `newest` is verified."""
    kept = max(keep_versions, max_lag + 2)
    return sorted(name for name in present if 0 < name.number <= newest - kept)
