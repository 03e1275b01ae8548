"""Which files of a folder are a journal's: its segments and checkpoints, by their exact names.

Promises: what somebody else put there, copies among it, is neither read nor removed. Apart from the journal itself, whose modules take five
times as long to load as a look at the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import JournalError

SEGMENT = re.compile(r"[0-9]{8}\.log")
CHECKPOINT = re.compile(r"[0-9]{16}\.checkpoint")
UNFINISHED = re.compile(r"(?:[0-9]{8}|[0-9]{16})\.partial")
"""What is being made; whoever finds one at start removes it."""


def segment_path(directory: Path, index: int) -> Path:
    """The file of a segment."""
    return directory / f"{index:08d}.log"


def segment_paths(directory: Path) -> list[Path]:
    """Segment files, oldest first. Raises JournalError where something that is no file has a segment's name: entries may be behind it."""
    found = sorted(Path(entry.path) for entry in _named(directory, SEGMENT))
    for path in found:
        if not path.is_file() and os.path.lexists(path):  # not one that the quota drops at this moment
            raise JournalError(f"{path}: has the name of a segment and is no file; move it out of the journal")
    return found


def checkpoint_paths(directory: Path) -> list[Path]:
    """Newest first. What has such a name and is no file is passed over: a journal can do without a checkpoint."""
    return sorted((Path(entry.path) for entry in _named(directory, CHECKPOINT) if entry.is_file()), reverse=True)


def unfinished_paths(directory: Path) -> list[Path]:
    """Segments and checkpoints that somebody was making."""
    return [Path(entry.path) for entry in _named(directory, UNFINISHED) if entry.is_file(follow_symlinks=False)]


def _named(directory: Path, names: re.Pattern[str]) -> Iterator[os.DirEntry[str]]:
    """Nothing where there is no such folder."""
    try:
        with os.scandir(directory) as entries:
            yield from [entry for entry in entries if names.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise JournalError(f"{directory}: cannot be read: {error.strerror}") from error
