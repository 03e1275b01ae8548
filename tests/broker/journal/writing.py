"""Writing and reading small journals."""

from __future__ import annotations

from pathlib import Path

from broker.journal import Journal
from broker.journal.files import Files

Written = list[tuple[bytes, float, list[bytes]]]
SOME: Written = [(f"event {n}".encode(), float(n), [b"x" * n, b""]) for n in range(8)]


def opened(folder: Path, segment_bytes: int = 1 << 20, files: Files | None = None) -> tuple[Journal, Written]:
    """The journal of `folder`, ready to append, and what it held."""
    journal = Journal(folder, segment_bytes, files=files)
    return journal, [(entry.event, entry.now, list(entry.frames)) for entry in journal.read()]


def write(folder: Path, entries: Written, segment_bytes: int = 1 << 20) -> None:
    """Each entry committed by itself."""
    journal, _ = opened(folder, segment_bytes)
    for event, now, frames in entries:
        journal.append(event, now, frames)
        journal.commit()
    journal.close()


def read(folder: Path) -> Written:
    journal, found = opened(folder)
    journal.close()
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))
