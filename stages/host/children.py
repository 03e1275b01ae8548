"""Real child processes, by pid: started with a log each, pinned, signalled, reaped.

Owns the processes it started and their pidfds; promises to touch no other, and that `fileno` becomes readable when
one has ended. Does not know why they are started or what an exit means. Main thread only
(`broker/lifeline.py` says why).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.lifeline import child_environment
from stages.host.tail import last_lines

KILL_PATIENCE_S = 2.0
"""A killed process is gone in milliseconds, unless it hangs inside the kernel: nobody waits for that."""
EXIT_NOT_STARTED = 127
"""Reported for a command that the system could not start, as a shell does."""

NOTHING: Mapping[str, str] = {}

MEND = {
    errno.EAGAIN: "this user may have no more processes here: end some, or raise the limit (ulimit -u; a container's pids limit)",
    errno.ENOMEM: "this machine has no memory left: end something, or take smaller settings",
    errno.EMFILE: "this process may open no more files: raise the limit (ulimit -n)",
    errno.ENOSPC: "the disk is full: free space there",
    errno.EACCES: "this user may not do that there: see who owns it, and its mode",
    errno.EROFS: "what is mounted there is read only",
}
"""What to do about a process that cannot be started, where the system's word for it does not say so."""


def why_not_started(error: OSError) -> str:
    """What the system said, of what, and what to do about it: of an error that `Children.start` raised."""
    said = error.strerror or str(error)
    of = f"{said}: {error.filename}" if error.filename else said
    return f"{of}; {MEND[error.errno]}" if error.errno in MEND else of


@dataclass
class Child:
    """One process that was started and not yet reaped."""

    process: subprocess.Popen[bytes]
    pidfd: int
    input: int | None = None
    """Where its standard input is written; None where it has none."""


class Children:
    """See the module. Names are unique among the living."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._living: dict[str, Child] = {}
        self._log_starts: dict[str, int] = {}
        self._ends = select.epoll()

    @property
    def living(self) -> dict[str, int]:
        """Pids by name."""
        return {name: child.process.pid for name, child in self._living.items()}

    def fileno(self) -> int:
        """Readable while an ended process waits to be reaped."""
        return self._ends.fileno()

    def start(
        self, name: str, command: Sequence[str], cores: Sequence[int] = (), environment: Mapping[str, str] = NOTHING, first: bytes = b""
    ) -> int:
        """The new process's pid. `environment`: variables beside those of this process.

        Pinned to `cores`; none: wherever this process may run. `first`: what it reads first; its input then stays open for `say`. Raises
        OSError where it cannot be started.
        """
        self.logs.mkdir(exist_ok=True)  # without parents: a run directory that was deleted is not made again
        log_path = self.log_path(name)
        with log_path.open("ab") as log:
            self._log_starts[name] = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if first else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**child_environment(), **environment},
                start_new_session=True,
            )
        pidfd = os.pidfd_open(process.pid)  # still valid for one that has ended: nobody but us can reap it
        child = self._living[name] = Child(process, pidfd)
        self._ends.register(pidfd, select.EPOLLIN)
        if process.stdin is not None:
            child.input = os.dup(process.stdin.fileno())
            process.stdin.close()
            os.set_blocking(child.input, False)
            self.say(name, first)
        if cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        return process.pid

    def send(self, name: str, number: signal.Signals) -> None:
        """Signals a living process; nothing happens to one that has ended."""
        if name in self._living:
            # Through the pidfd: the number of a process that has ended may belong to another by now.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._living[name].pidfd, number)

    def say(self, name: str, text: bytes) -> None:
        """Writes to a process's input; lost where it does not read, or has none."""
        child = self._living.get(name)
        if child is not None and child.input is not None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(child.input, text)

    def hush(self) -> None:
        """Ends the input of every process: one that lives by it goes."""
        for child in self._living.values():
            _close_input(child)

    def reap(self, timeout_s: float = 0.0) -> Iterator[tuple[str, int]]:
        """Name and exit code (-9: killed by signal 9) of each process that has ended.

        Waits for the first at most `timeout_s`.
        """
        ended = {fd for fd, _ in self._ends.poll(timeout_s)}
        for name, child in list(self._living.items()):
            if child.pidfd in ended:
                del self._living[name]
                self._ends.unregister(child.pidfd)
                os.close(child.pidfd)
                _close_input(child)
                yield name, child.process.wait()

    def end_all(self, grace_s: float) -> dict[str, int]:
        """Asks every process to end, kills what is left after `grace_s`; exit codes by name."""
        codes: dict[str, int] = {}
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_PATIENCE_S)):
            for name in self.living:
                self.send(name, number)
            deadline = time.monotonic() + patience_s
            while self._living and (left_s := deadline - time.monotonic()) > 0:
                codes |= dict(self.reap(left_s))
        return codes

    def log_path(self, name: str) -> Path:
        """Where the process's output goes."""
        return self.logs / f"{name}.log"

    def last_lines(self, name: str) -> tuple[str, ...]:
        """The last lines that the newest process of this name has written."""
        return last_lines(self.log_path(name), self._log_starts.get(name, 0))

    def close(self) -> None:
        """Ends what still lives and frees the descriptors."""
        self.end_all(grace_s=0.0)
        self._ends.close()


def _close_input(child: Child) -> None:
    if child.input is not None:
        os.close(child.input)
        child.input = None
