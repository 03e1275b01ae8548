"""Looks through the segments that a start had no need to read, for damage that nobody would notice until a replay.

A thread beside the broker, quick at first, then a tenth of the time at work. It reports, and touches nothing.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from broker.journal.checkpoint import Checkpoint
from broker.journal.quarantine import Quarantine
from broker.journal.reading import Damage, Scan

EAGER_SECONDS = 0.5
WORK_SECONDS, REST_SECONDS = 0.005, 0.045


class Scrub:
    """Reads `directory` up to and with the segment that `until` lies in."""

    def __init__(self, directory: Path, until: Checkpoint, quarantine: Quarantine) -> None:
        self._directory = directory
        self._until = until
        self._quarantine = quarantine
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal-scrub", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rest_at = time.monotonic() + EAGER_SECONDS
        try:
            for item in Scan(self._directory, sure=self._until.number, want_frames=False):
                if self._ended.is_set() or item.position.segment > self._until.position.segment:
                    return
                if isinstance(item, Damage) and not item.dropped:
                    self._quarantine.take(item)
                if time.monotonic() >= rest_at:
                    self._ended.wait(REST_SECONDS)
                    rest_at = time.monotonic() + WORK_SECONDS
        except FileNotFoundError:
            return  # the quota dropped a segment under its hands

    def join(self) -> None:
        """Waits until all is looked through."""
        self._thread.join()

    def close(self) -> None:
        """Stops."""
        self._ended.set()
        self._thread.join()
