"""A reward stage's pool without processes: the verifier runs in this one, where a debugger can follow it.

Promises what the worker processes promise but for two things: no limit of time is kept, and a verifier that ends its process ends the
replay. What it raises is an answer, as there.
"""

from __future__ import annotations

import asyncio
import bdb
import os
import sys
from collections import deque
from collections.abc import Callable

from schemas.errors import VerifierFailure
from stages.reward.pool import Verdict
from stages.reward.verdicts import Begin, Judge, Judged, Refused
from stages.reward.verifier import load_verifier, reward_parts
from stages.reward.worker import is_async
from tools.replay.debugging import Debugger


class OwnProcessPool:
    """See `stages.reward.stage.Pool`. With a `debugger`, each call of the verifier is entered, and each exception looked at where it was
    raised."""

    def __init__(self, begin: Begin, debugger: Debugger | None) -> None:
        self._debugger = debugger
        self._verifier = load_verifier(begin.verifier)
        self._line: deque[Judge] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.busy_seconds = 0.0

    def fileno(self) -> int:
        return self._wake

    def submit(self, request: Judge) -> None:
        self._line.append(request)
        os.eventfd_write(self._wake, 1)

    def cancel(self, number: int) -> None:
        self._line = deque(request for request in self._line if request.number != number)

    def take(self) -> list[Verdict]:
        if not self._line:
            return []
        requests, self._line = list(self._line), deque()
        os.eventfd_read(self._wake)
        return [self._judge(request) for request in requests]

    def close(self) -> None:
        os.close(self._wake)

    def _judge(self, request: Judge) -> Verdict:
        try:
            return Judged(request.number, self._called(request))
        except VerifierFailure as error:
            return Refused(request.number, str(error))
        except bdb.BdbQuit:
            raise
        except Exception as error:  # user code, as in stages.reward.worker
            if self._debugger is not None:
                print(f"the verifier raised {type(error).__name__}: {error}; this is where", file=sys.stderr)
                if self._debugger.look_at(error.__traceback__):
                    raise bdb.BdbQuit from error
            return Refused(request.number, f"the verifier raised {type(error).__name__}: {error}")

    def _called(self, request: Judge) -> dict[str, float]:
        if self._debugger is None or is_async(self._verifier):
            return asyncio.run(self._verifier.judge(request.episode))
        return reward_parts(self._debugger.runcall(self._verifier.function, request.episode))


def pool_maker(debugger: Debugger | None) -> Callable[[Begin, int, int, Callable[[], float]], OwnProcessPool]:
    """What `Reward` is to make its pool with."""
    return lambda begin, _size, _depth, _clock: OwnProcessPool(begin, debugger)
