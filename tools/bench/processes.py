"""The benchmark's processes: servers and clients, started on a leash and ended by pid.

Owns every process it started, in a session of its own so that a terminal's Ctrl-C reaches the benchmark alone, and its scratch directories.
Promises that leaving `Crew` ends all of them and their children and removes the directories; a benchmark killed by signal 9 leaves no
process either, for each is bound to it by the kernel's parent-death signal.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from broker.lifeline import child_environment
from schemas.errors import TidemillError

HOUSE = Path(__file__).resolve().parents[2]
GRACE_SECONDS = 3.0
START_SECONDS = 180.0
"""A cold Erlang on a busy machine needs most of it."""
LOG_LINES = 12


class BenchError(TidemillError):
    """Something that the benchmark started did not do what it should."""


class Crew:
    """All processes and directories of a benchmark."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self.directory = Path(tempfile.mkdtemp(prefix="tmb-"))  # short: socket paths lie in it

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        patience = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of them behind
        for process in list(reversed(self._processes)):
            self.end(process, grace_s=0.0)
        shutil.rmtree(self.directory, ignore_errors=True)
        signal.signal(signal.SIGINT, patience)

    def folder(self, name: str) -> Path:
        """A fresh directory."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, piped: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts a program on the leash; its output goes to `log`, or its stdin and stdout to pipes."""
        leashed = [sys.executable, "-P", "-m", "tools.bench.leash", *command]
        with log.open("ab") as output:
            process = subprocess.Popen(
                leashed, cwd=HOUSE, env={**child_environment(), **(environment or {})}, start_new_session=True, stderr=output,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL, stdout=subprocess.PIPE if piped else output,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes], grace_s: float = GRACE_SECONDS) -> None:
        """Ends a process and what it started, by pid: politely for `grace_s`, then for good."""
        children = _family(process)[1:]
        if grace_s and process.poll() is None:
            process.terminate()
            _wait(process, grace_s)
        process.kill()
        process.wait()
        for child in children:
            if child.is_running():  # compares start times: a pid that was given to someone else is left alone
                _kill(child)
        psutil.wait_procs(children, timeout=GRACE_SECONDS)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        if process in self._processes:
            self._processes.remove(process)


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    if process.poll() is not None:
        return []
    try:
        head = psutil.Process(process.pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return


def _kill(member: psutil.Process) -> None:
    try:
        member.kill()
    except psutil.NoSuchProcess:
        return


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Processor time, user and system, of a process and its children so far."""
    return sum(sum(member.cpu_times()[:2]) for member in _family(process))


def thread_times(pid: int) -> dict[str, float]:
    """Processor time in seconds by thread name (the kernel's: 15 characters), threads of a name together; the first is `main`."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        head, _, rest = (task / "stat").read_text().rpartition(")")
        fields = rest.split()
        name = head.partition("(")[2] if task.name != str(pid) else "main"
        spent[name] = spent.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / ticks
    return spent


def free_port() -> int:
    """A port on the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns once someone listens on the loopback."""
    wait_until(lambda: _connects(port), process, log)


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns once `done()` is true. Raises BenchError with the end of the log where the process ends first or is too slow."""
    deadline = time.monotonic() + START_SECONDS
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            state = f"ended with {process.returncode}" if process.poll() is not None else f"was not up within {START_SECONDS:.0f} s"
            raise BenchError("\n".join([f"{log.stem} {state}; the end of its log:", *lines]))
        time.sleep(0.01)
