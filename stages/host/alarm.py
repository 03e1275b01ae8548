"""A descriptor that becomes readable at a given time, or when another does: what the service loop waits on for a host.

Python 3.11 has no timerfd; a timer thread writes an eventfd instead. It does nothing else: processes are started from
the main thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading


class Alarm:
    """Readable once the time set has come, or while `other` is readable."""

    def __init__(self, other: int) -> None:
        self._due = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._either = select.epoll()
        self._either.register(self._due, select.EPOLLIN)
        self._either.register(other, select.EPOLLIN)
        self._timer: threading.Timer | None = None

    def fileno(self) -> int:
        """For poll and select."""
        return self._either.fileno()

    def set(self, delay_s: float | None) -> None:
        """Rings in `delay_s` seconds, and no longer at the time set before; None: not at all."""
        self._cancel()
        if delay_s is not None:
            self._timer = threading.Timer(max(0.0, delay_s), os.eventfd_write, (self._due, 1))
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Frees the descriptors."""
        self._cancel()
        self._either.close()
        os.close(self._due)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # it may be writing: the descriptor must not be closed under it
            self._timer = None
        with contextlib.suppress(BlockingIOError):  # it had not rung
            os.eventfd_read(self._due)
