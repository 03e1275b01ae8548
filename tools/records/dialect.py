"""Recordings of another version of the schemas, put so that this version's core and stages take them as the recorded ones did then.

A broker refuses whoever speaks another `schema.lock` than its own; so a hello under the recorded lock is read as one under this version's.
What a record's fields mean is not touched: whether they can be read is for the reader to see. Pure but for reading the lock's file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from broker.core.events import Event, Received
from schemas.header import Header
from schemas.lock import fingerprints, schema_fingerprint
from schemas.messages import PROTOCOL_VERSION, Hello


class Dialect:
    """Of one run. `changed`: records whose schema was another then, of those that this version knows."""

    def __init__(self, run: Path) -> None:
        """`run`: the folder in which `schema.lock` lies; without one, the first hello says what was spoken."""
        lock = _lock_of(run)
        self._recorded: int | None = lock.get("schema") if isinstance(lock.get("schema"), int) else None
        known, records = fingerprints(), lock.get("records")
        then = records if isinstance(records, dict) else {}
        self.changed = tuple(tag for tag in known if tag in then and then[tag] != known[tag])

    def now(self, event: Event) -> Event:
        """The event as this version's processes would have caused it."""
        if not isinstance(event, Received) or not isinstance(event.message, Hello):
            return event
        hello = event.message
        if self._recorded is None:
            self._recorded = hello.schema
        if hello.schema != self._recorded or hello.schema == schema_fingerprint():
            return event
        return replace(event, message=replace(hello, schema=schema_fingerprint(), protocol=PROTOCOL_VERSION))

    def stamped(self, header: Header) -> Header:
        """A header that says this version's schema of its record."""
        return replace(header, fingerprint=fingerprints()[header.record]) if header.record in self.changed else header


def _lock_of(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / "schema.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
