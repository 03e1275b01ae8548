"""What the broker asks of its own process: memory kept for reuse, a garbage collector that looks seldom, threads that take turns quickly.

Records come and go by the thousand, of the same few sizes. glibc would hand their pages back to the kernel and take them anew each time;
Python would look through the whole state for cycles, of which the broker makes none. Reference counts free everything either way.
"""

from __future__ import annotations

import ctypes
import gc
import sys

KEPT_BYTES = 64 << 20
"""Free memory at the end of the heap that stays ours."""
STEP_BYTES = 4 << 20
"""By which the heap grows."""
MAPPED_FROM_BYTES = 8 << 20
"""Larger pieces get pages of their own, and give them back."""
YOUNG_OBJECTS = 50_000
"""Allocations after which the collector looks at the youngest; far more than one turn of the loop makes."""

SWITCH_SECONDS = 0.0005
"""After which a thread that wants the interpreter gets it. The journal's writer wants it a few times a commit, for microseconds; while the
broker's own thread is busy it would wait Python's 5 ms for it each time, and all that waits for that commit with it."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Of <malloc.h>."""


def tune() -> None:
    """Once, when all is imported and before the first client. On another C library than glibc the heap stays as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        mallopt = None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_TOP_PAD, STEP_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)
    sys.setswitchinterval(SWITCH_SECONDS)
