"""Lines of text on stdout, as they come, until nobody reads any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from tools.records.bar import Bar


def quietly(write: Iterable[str], bar: Bar | None = None) -> int:
    """Prints lines as they come; a reader that has seen enough ends it without a complaint."""
    written(write, bar)
    return 0


def written(write: Iterable[str], bar: Bar | None = None) -> bool:
    """As `quietly`; False where the reader went before the end. The first line is out at once, a terminal's others too."""
    follows = bar is not None and sys.stdout.isatty()
    try:
        for number, line in enumerate(write):
            if bar is not None:
                bar.clear()
            print(line, flush=follows or not number)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
