"""A directory of files gets its name once all of it is on disk: whoever finds the name finds the whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def publish(aside: Path, target: Path) -> None:
    """Makes the flat directory `aside` durable and gives it its name; an older one of that name goes. Raises OSError."""
    for path in (*aside.iterdir(), aside):
        _sync(path)
    replaced = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        target.rename(replaced)
    aside.rename(target)
    _sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
