"""The end of a log file, for people."""

from __future__ import annotations

import contextlib
from pathlib import Path

TAIL_BYTES = 16_384
"""Read from the end of the file: enough for a traceback, small enough for a message."""
TAIL_LINES = 20


def last_lines(log: Path, start: int = 0) -> tuple[str, ...]:
    """The last lines that stand at or after byte `start`.

    None where there is no such file, or it cannot be read. Bytes that are no text are replaced.
    """
    with contextlib.suppress(OSError), log.open("rb") as file:
        size = file.seek(0, 2)
        begin = max(start, size - TAIL_BYTES)
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
        cut_off = begin > start  # then the first line is only the end of one
        return tuple(lines[int(cut_off) :][-TAIL_LINES:])
    return ()
