"""What is damaged, set apart.

`quarantine.json` names it, `quarantine/` keeps a copy of the bytes. Nothing is ever removed from a segment for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import structlog

from broker.journal.reading import Damage
from broker.journal_files import segment_path

COPIED_BYTES_MAX = 64 << 20
LISTED_MAX = 99
"""Lost entries that are listed one by one; `first` and `last` tell the rest."""

log = structlog.get_logger()


class Quarantine:
    """The damaged places of one journal; each is reported once in the life of a broker and listed once for all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "quarantine.json"
        self._told: set[tuple[int, int, int, int]] = set()

    def take(self, damage: Damage) -> None:
        """Says it, lists it, copies it."""
        key = (damage.position.segment, damage.position.offset, damage.first, damage.last)
        if key in self._told:
            return
        self._told.add(key)
        log.error("journal_damaged", detail=str(damage), segment=key[0], offset=key[1], bytes=damage.bytes, first=key[2], last=key[3])
        self._list(damage)
        self._copy(damage)

    def listed(self) -> list[dict[str, Any]]:
        """What was ever found damaged here."""
        if not self._file.exists():
            return []
        found: list[dict[str, Any]] = json.loads(self._file.read_text())
        return found

    def _list(self, damage: Damage) -> None:
        lost = list(range(damage.first, min(damage.last, damage.first + LISTED_MAX) + 1))
        line: dict[str, Any] = {"segment": damage.position.segment, "offset": damage.position.offset, "bytes": damage.bytes}
        line |= {"what": damage.what, "lost": lost, "first": damage.first, "last": damage.last}
        known = self.listed()
        if line not in known:
            partial = self._file.with_suffix(".partial")
            partial.write_text(json.dumps([*known, line], indent=2) + "\n")
            os.replace(partial, self._file)

    def _copy(self, damage: Damage) -> None:
        if not damage.bytes:
            return
        place = self._directory / "quarantine"
        place.mkdir(mode=0o700, exist_ok=True)
        segment = segment_path(self._directory, damage.position.segment)
        with segment.open("rb") as file:
            file.seek(damage.position.offset)
            data = file.read(min(damage.bytes, COPIED_BYTES_MAX))
        (place / f"{segment.stem}-{damage.position.offset}.bin").write_bytes(data)
