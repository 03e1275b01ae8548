"""One host: namespaces for network, files, processes, name and monotonic clock, held by one process of ours.

Owns every process in them: `die` ends all at once, and so does the end of the test itself, kill -9 included, because each process
that holds something dies with the one that started it. Nothing has a name outside, so nothing is left behind. On every host /tmp
is its own `world`, at the same paths, and the only place that can be written: a file of another host cannot be found by accident.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.skeleton.waiting import until

HOUSE = Path(__file__).resolve().parents[2]
HOME = "/tmp/home"
DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL")
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc", "--time")


def unshared(*command: str, monotonic_s: int = 0) -> tuple[str, ...]:
    """A command that runs `command` as the first process of a new host; its monotonic clock is `monotonic_s` ahead of ours."""
    clock = ("--monotonic", str(monotonic_s), "--boottime", str(monotonic_s))
    return (*DIE_WITH_US, "unshare", *NAMESPACES, *clock, "--fork", "--kill-child=KILL", "--mount-proc", *command)


@dataclass
class Process:
    """A process on a host. `pid` is what we see from outside, where every host's processes have numbers of their own."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Of the command itself: the one that entered the namespaces waits for it outside."""
        assert self.at_work, f"it has ended: {self.story()}"
        return int(psutil.Process(self.popen.pid).children()[0].pid)

    def strike(self, number: signal.Signals = signal.SIGKILL) -> None:
        psutil.Process(self.pid).send_signal(number)

    @property
    def at_work(self) -> bool:
        return self.popen.poll() is None

    def wait(self, patience_s: float = 40.0) -> int:
        """Its exit code; -9 where it was killed."""
        until(lambda: not self.at_work, f"{self.name} ends", self.story, patience_s)
        return int(self.popen.returncode)

    def story(self) -> str:
        return f"{self.name}: {'at work' if self.at_work else f'ended with {self.popen.returncode}'}\n{self.log.read_text()[-3000:]}"


class Machine:
    """See the module. `world` is the host's /tmp, seen from outside."""

    def __init__(self, name: str, address: str, world: Path, hidden: Sequence[str] = (), monotonic_s: int = 0) -> None:
        self.name, self.address, self.world = name, address, world
        self.processes: list[Process] = []
        (world / "home").mkdir(parents=True)
        init = (sys.executable, "-S", "-E", str(HOUSE / "tests" / "hosts" / "init.py"), name, str(world), str(HOUSE), *hidden)
        self._log = (world / "init.log").open("ab")
        self._holder = subprocess.Popen(unshared(*init, monotonic_s=monotonic_s), stdout=subprocess.PIPE, stderr=self._log)
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        assert said == b"ready\n", f"host {name} could not be made: {(world / 'init.log').read_text()}"
        self.pid = psutil.Process(self._holder.pid).children()[0].pid

    def inside(self, path: str) -> Path:
        """Where a path of the host, below /tmp, is seen from outside."""
        return self.world / Path(path).relative_to("/tmp")

    def _entering(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
        enter = ("nsenter", "-t", str(self.pid), "-n", "-m", "-p", "-u", "-i", "-T", "--")
        mine = {"PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": HOME, "LANG": "C.UTF-8",
                "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip
        return (*enter, "env", "-i", "-C", HOME, *(f"{key}={value}" for key, value in {**mine, **environment}.items()), *command)

    def start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> Process:
        """A process in the background; what it says goes into /tmp/NAME.log of the host."""
        log = self.world / f"{name}.log"
        with log.open("ab") as out:
            popen = subprocess.Popen(self._entering(command, environment or {}), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        process, outer = Process(name, popen, log), psutil.Process(popen.pid)
        self.processes.append(process)
        until(lambda: not process.at_work or outer.children(), f"{name} is there", process.story)
        return process

    def call(
        self, *command: str, environment: Mapping[str, str] | None = None, patience_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        entering = self._entering(command, environment or {})
        return subprocess.run(entering, capture_output=True, text=True, timeout=patience_s, stdin=subprocess.DEVNULL)

    def named(self, name: str) -> Process:
        """The newest process of that name."""
        return next(process for process in reversed(self.processes) if process.name == name)

    def living(self) -> list[psutil.Process]:
        """All that run on this host, its first process aside, whoever started them."""
        found = []
        with contextlib.suppress(OSError):
            ours = Path(f"/proc/{self.pid}/ns/pid").readlink()
            for process in psutil.process_iter():
                with contextlib.suppress(OSError, psutil.Error):
                    if process.pid != self.pid and Path(f"/proc/{process.pid}/ns/pid").readlink() == ours:
                        found.append(process)
        return found

    def die(self) -> None:
        """kill -9 of everything on this host, at once; it never comes back."""
        if self._holder.poll() is None:  # it waits for the first process, whose number is nobody else's until then
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self.pid).kill()
        self._holder.wait()
        for process in self.processes:
            process.popen.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        self._log.close()

    def story(self) -> str:
        return f"host {self.name}: " + "; ".join(process.story() for process in self.processes)
