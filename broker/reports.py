"""What the broker writes for people, beside the journal: metrics as JSON lines and TensorBoard events, the summary, the
failure.

Owns `<run>/metrics.jsonl`, `<run>/tensorboard/`, `<run>/summary.json`, `<run>/failure.json`.

The journal has it all: what a full disk does not take ends no run. Lines of metrics wait for room; events of TensorBoard are lost.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger()


class Reports:
    """Writes into one run directory."""

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
        self._metrics = open(run_directory / "metrics.jsonl", "ab", buffering=0)  # noqa: SIM115 - lives as long as the broker
        self._unwritten = b""
        self._events: Any = None

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """One line and one TensorBoard event for a committed step."""
        line = _plain({"step": step, **metrics})
        self._unwritten += json.dumps(line, allow_nan=False).encode() + b"\n"
        self._write_metrics()
        try:
            self._tensorboard(step, metrics)
        except OSError as error:
            self._events = None  # its writer has given up for good: the next step begins a new file
            log.warning("not_in_tensorboard", step=step, why=str(error))

    def _write_metrics(self) -> None:
        try:
            written = self._metrics.write(self._unwritten)
        except OSError as error:
            log.warning("metrics_wait_for_room", bytes=len(self._unwritten), why=str(error))
            return
        self._unwritten = self._unwritten[written:]

    def _tensorboard(self, step: int, metrics: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._events is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._events = EventFileWriter(str(self._directory / "tensorboard"), flush_secs=10)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if math.isfinite(value)]
        self._events.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def end(self, summary: dict[str, Any], failure: dict[str, Any] | None) -> None:
        """The run is over."""
        try:
            write_json(self._directory / "summary.json", summary)
            if failure is not None:
                write_json(self._directory / "failure.json", failure)
        except OSError as error:
            log.error("no_summary", why=str(error), summary=_plain(summary), failure=_plain(failure))

    def close(self) -> None:
        """Flushes."""
        if self._unwritten:
            self._write_metrics()
        self._metrics.close()
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()


def _plain(value: Any) -> Any:
    """JSON has no word for infinity or for what is not a number: null stands there."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """As `write_text`; infinities and what is no number become null."""
    write_text(path, json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a file, nor an empty one."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
