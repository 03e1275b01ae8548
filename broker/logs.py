"""structlog, set up the same way in every process: one JSON line an event on standard error, which whoever started the process keeps.

A line that cannot be written ends nobody: where the log lies on a full disk it is lost, and the next one that can be written says how many
were.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

import structlog

LEVEL = "TIDEMILL_LOG_LEVEL"
"""Environment variable: debug, info (the default), warning or error."""


def configure_logs(**bound: str | int) -> None:
    """`bound` (process, stage, pipeline ...) stands in every line."""
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "info").upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(Lines(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)


class Lines:
    """What a logger needs of a stream: it collects a line and writes it whole, past the stream's own buffer, which would fail again at the
    process's end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line: list[str] = []
        self._lost = 0
        self._torn = False

    def write(self, text: str) -> int:
        """Kept until `flush`."""
        self._line.append(text)
        return len(text)

    def flush(self) -> None:
        """Writes the line, or forgets it."""
        text, self._line = "".join(self._line), []
        said = f'{{"event": "log_lines_lost", "lines": {self._lost}, "level": "warning"}}\n' if self._lost else ""
        data = (("\n" if self._torn else "") + said + text).encode(errors="replace")
        try:
            written = os.write(self._stream.fileno(), data)
        except (ValueError, OSError):  # a closed stream; a full disk
            self._lost += 1
            return
        self._torn = written < len(data)
        self._lost = 1 if self._torn else 0
