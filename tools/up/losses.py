"""What a run's journal has lost that the run can go on without, and `inspect` and `replay` cannot: for people, once.

Reads names, the newest checkpoint and the broker's list of what it found damaged, and no segment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from broker.journal import checkpoint
from broker.journal.format import BLOCK
from broker.journal_files import segment_paths

SHOWN = 3
"""Segments, or places, that are named."""
WITHOUT = "the run goes on from a checkpoint behind that, but inspect and replay do not have it"


def missing_segments(journal: Path, quota_bytes: int) -> str:
    """Which files are gone, in a line; empty where none is, or the quota may have dropped them. Raises JournalError."""
    there = {int(path.stem): path for path in segment_paths(journal)}
    if sum(path.stat().st_size for path in there.values()) > quota_bytes // 2:
        return ""
    gone = sorted(set(range(max([*there, _covered(journal)], default=-1) + 1)) - set(there))
    return f"the journal lacks {_named(f'{index:08d}.log' for index in gone)}: {WITHOUT}" if gone else ""


def _covered(journal: Path) -> int:
    """The last segment that a checkpoint knows something of; -1 where there is none."""
    newest = next(checkpoint.valid(journal), None)
    if newest is None:
        return -1
    return newest.position.segment - (newest.position.offset <= BLOCK)  # at its very beginning it may not be made yet


class Quarantine:
    """The broker's list, looked at as often as one likes."""

    def __init__(self, journal: Path) -> None:
        self._file = journal / "quarantine.json"
        self._told = False

    def news(self) -> str:
        """What is lost, in a line, the first time that there is something; else empty."""
        if self._told or not self._file.is_file():
            return ""
        lost = _lost(self._file)
        self._told = bool(lost)
        return f"the journal is damaged, {_named(lost)} lost (journal/quarantine.json): {WITHOUT}" if lost else ""


def _lost(file: Path) -> list[str]:
    try:
        rows = [(row["first"], row["last"]) for row in json.loads(file.read_bytes())]
        return [f"entry {first}" if first == last else f"entries {first} to {last}" for first, last in rows if last >= first]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []  # a list for people: the broker goes by the journal itself


def _named(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
