"""structlog, set up the same way in every process: one JSON line an event on standard error, which whoever started the process keeps."""

from __future__ import annotations

import logging
import os
import sys

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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
