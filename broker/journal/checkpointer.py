"""Writes checkpoints behind the broker's back, and drops the segments that the quota wants gone once a checkpoint allows it.

One thread for each checkpoint: it waits until the entries below are durable, for a checkpoint ahead of its journal would
be a lie. A checkpoint that cannot be written is no misfortune but a longer start; the next one is tried when it is due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from broker.journal import checkpoint as checkpoints
from broker.journal.checkpoint import KEPT, Checkpoint
from broker.journal.files import PARTIAL, Files
from broker.journal.retention import droppable
from broker.journal_files import segment_path, segment_paths
from schemas.errors import JournalError

log = structlog.get_logger()


class Checkpointer:
    """For one journal; at most one checkpoint is in the making."""

    def __init__(self, files: Files, directory: Path, quota_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._quota_bytes = quota_bytes
        self._kept: list[Checkpoint] = []
        self._thread: threading.Thread | None = None
        self.dropped_bytes = 0
        """Of segments dropped in this life."""

    def adopt(self, kept: list[Checkpoint]) -> None:
        """Checkpoints that are there already, newest first."""
        self._kept = [_light(checkpoint) for checkpoint in kept[:KEPT]]

    @property
    def is_busy(self) -> bool:
        """One is in the making."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, made: Checkpoint, is_durable: Callable[[], bool], journal_bytes: int) -> None:
        """Writes `made` once `is_durable` has returned True."""
        self.close()
        self._thread = threading.Thread(target=self._write, args=(made, is_durable, journal_bytes), name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self, made: Checkpoint, is_durable: Callable[[], bool], journal_bytes: int) -> None:
        if not is_durable():
            return
        try:
            checkpoints.write(self._files, self._directory, made)
            checkpoints.prune(self._files, self._directory)
            self._kept = [_light(made), *self._kept][:KEPT]
            self._drop(journal_bytes)
        except (OSError, JournalError) as error:
            log.warning("checkpoint_failed", number=made.number, error=str(error), detail="the next start will take longer")
            self._clear(made.number)

    def _clear(self, number: int) -> None:
        try:
            self._files.unlink(checkpoints.path_of(self._directory, number).with_suffix(PARTIAL))
        except OSError:
            return  # it was never begun, or the next start removes it

    def _drop(self, journal_bytes: int) -> None:
        paths = segment_paths(self._directory)[:-1]
        sizes = {int(path.stem): path.stat().st_size for path in paths}
        for segment in droppable(sizes, journal_bytes, self._quota_bytes, self._kept):
            self._files.unlink(segment_path(self._directory, segment))
            self.dropped_bytes += sizes[segment]
            log.info("segment_dropped", segment=segment, bytes=sizes[segment], quota_bytes=self._quota_bytes)

    def close(self) -> None:
        """Waits for the one in the making."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _light(checkpoint: Checkpoint) -> Checkpoint:
    """Without the state: only its place and what it holds matter from now on."""
    return Checkpoint(number=checkpoint.number, now=checkpoint.now, position=checkpoint.position, state=b"", arena=checkpoint.arena)
