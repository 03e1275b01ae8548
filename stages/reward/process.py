"""One worker process as the stage sees it: requests in, answers out, never blocking, and an end that always comes.

Owns the child's pid and pipes, and its session: whatever user code started in it ends with it, unless it made a session of its own.
Promises that neither a hung nor a dead child can block the caller. Knows nothing of episodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from broker.lifeline import child_environment
from stages.reward.verdicts import Answer, Request, framed, take_answers

READ_BYTES = 1 << 16


class WorkerProcess:
    """Started at once, from the main thread. `answers_fd` becomes readable when it answers or ends."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "stages.reward.worker")) -> None:
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), start_new_session=True
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._requests_fd, self.answers_fd = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._requests_fd, False)
        os.set_blocking(self.answers_fd, False)
        self._unsent = bytearray()
        self._received = bytearray()

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, request: Request) -> None:
        """Queues a request; a child that is gone does not take it."""
        self._unsent += framed(request)
        self.flush()

    def flush(self) -> None:
        """Writes as much as the pipe takes. What is left goes with the next call."""
        while self._unsent:
            try:
                written = os.write(self._requests_fd, self._unsent)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._unsent.clear()
                return
            del self._unsent[:written]

    def take(self) -> list[Answer]:
        """All answers that have arrived."""
        while True:
            try:
                read = os.read(self.answers_fd, READ_BYTES)
            except BlockingIOError:
                break
            if not read:
                break
            self._received += read
        return take_answers(self._received)

    def ended(self) -> int | None:
        """The child's exit status once it has ended, negative for a signal; else None."""
        if self._child.returncode is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._kill_all()
        return self._child.poll()

    def _kill_all(self) -> None:
        """Before the child is reaped: until then nobody else can have its number."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> int:
        """Ends the child, whatever it does, and frees its pipes. Returns its exit status."""
        if self._child.returncode is None:
            self._kill_all()
        status = self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()
        return status
