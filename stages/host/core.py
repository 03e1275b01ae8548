"""What a host does with its processes: pure, a machine of states that returns acts for the edge to carry out.

| | |
|---|---|
| consumes | `StartProcess`, `StopProcess`, `Drain`; starts and exits of real processes; the time |
| produces | `Spawn`, `Terminate`, `Kill`, `Report` |
| waits for | the exit of what was terminated; the time of a restart |
| unblocked by | `Kill` after the grace; the back-off's bound |

```
            order                exit, may be restarted
 (unknown) ──────► running ────────────────────────────► waiting ──► running
                     │  │ exit: ordered, bad input, or once too often
                stop │  └──────────────► gone ──order──► running
                     ▼           ▲
                  stopping ──────┘ exit; killed after the grace
```

Owns names, pids, restarts; promises one `Report` an exit. Does not know logs, clocks, signals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from msgspec import Struct

from schemas.edges import STAGES, Role
from schemas.messages import StartProcess, StopProcess
from stages.host.restarts import RestartPolicy

EXIT_BAD_INPUT = 2
"""A process that was asked for what cannot be run: starting it again changes nothing."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""A process's name is the name of its log file too."""


class Spawn(Struct, frozen=True):
    """Start this process; answered by `Roster.spawned`."""

    name: str
    role: Role
    slots: tuple[str, ...]


class Terminate(Struct, frozen=True):
    """Ask the process to end."""

    name: str


class Kill(Struct, frozen=True):
    """End the process."""

    name: str


class Report(Struct, frozen=True):
    """Tell the broker of an exit. `code` as in `ProcessExited`."""

    name: str
    code: int
    final: bool
    restarts: int
    reason: str = ""


Act = Spawn | Terminate | Kill | Report


@dataclass
class Process:
    """One name that was ordered. Times are the caller's `now`."""

    name: str
    role: Role
    slots: tuple[str, ...]
    pid: int | None = None
    code: int = 0
    """Of the last exit."""
    stopping: bool = False
    kill_at: float | None = None
    restart_at: float | None = None
    restarted_at: list[float] = field(default_factory=list)


class Roster:
    """All processes of one host."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.processes: dict[str, Process] = {}
        self.ending = False
        """The run ends: nothing is started any more."""

    @property
    def running(self) -> dict[str, int]:
        """Pids by name."""
        return {name: process.pid for name, process in self.processes.items() if process.pid is not None}

    @property
    def ended(self) -> bool:
        """True once the end was ordered and no process is left."""
        return self.ending and not self.running

    def start(self, order: StartProcess) -> list[Act]:
        """Obeys; a process that runs, or will be restarted, stays as it is."""
        if order.role not in STAGES or not NAME.fullmatch(order.name):
            return [Report(order.name, EXIT_BAD_INPUT, True, 0, f"no host starts a {order.role} named {order.name!r}")]
        process = self.processes.setdefault(order.name, Process(order.name, order.role, order.slots))
        if self.ending or process.pid is not None or process.restart_at is not None:
            return []
        process.role, process.slots, process.stopping = order.role, order.slots, False
        return [self._spawn(process)]

    def stop(self, order: StopProcess, now: float) -> list[Act]:
        """Obeys; without a name all processes end, and then the host."""
        self.ending = self.ending or not order.name
        named = [self.processes[order.name]] if order.name in self.processes else []
        acts: list[Act] = []
        for process in named if order.name else self.processes.values():
            acts += self._stop(process, now + order.grace_s)
        return acts

    def drain(self) -> list[Act]:
        """The run ends and the stages end by themselves: none of them is started again."""
        self.ending = True
        return [act for process in self.processes.values() for act in self._give_up(process)]

    def spawned(self, name: str, pid: int) -> None:
        """The process that `Spawn` asked for runs."""
        self.processes[name].pid = pid

    def exited(self, name: str, code: int, now: float) -> list[Act]:
        """A process ended, or could not be started."""
        process = self.processes[name]
        process.pid, process.kill_at, process.code = None, None, code
        delay = self._restart_delay(process, now)
        if delay is not None:
            process.restart_at = now + delay
        return [Report(name, code, delay is None, len(process.restarted_at))]

    def wake(self, now: float) -> list[Act]:
        """What has become due."""
        acts: list[Act] = []
        for process in self.processes.values():
            if process.restart_at is not None and process.restart_at <= now:
                process.restart_at = None
                process.restarted_at.append(now)
                acts.append(self._spawn(process))
            if process.kill_at is not None and process.kill_at <= now:
                process.kill_at = None
                acts.append(Kill(process.name))
        return acts

    def next_wake(self) -> float | None:
        """When `wake` has something to do; None: only after an event."""
        times = [at for process in self.processes.values() for at in (process.restart_at, process.kill_at)]
        return min((at for at in times if at is not None), default=None)

    def _spawn(self, process: Process) -> Spawn:
        return Spawn(process.name, process.role, process.slots)

    def _restart_delay(self, process: Process, now: float) -> float | None:
        if process.stopping or self.ending or process.code == EXIT_BAD_INPUT:
            return None
        return self.policy.decide(process.restarted_at, now)

    def _stop(self, process: Process, kill_at: float) -> list[Act]:
        if process.pid is None:
            return self._give_up(process)
        process.stopping, process.kill_at = True, kill_at
        return [Terminate(process.name)]

    def _give_up(self, process: Process) -> list[Act]:
        """Cancels a restart that is due.

        The exit was reported as one to be mended, so it is reported again as final.
        """
        if process.restart_at is None:
            return []
        process.restart_at = None
        return [Report(process.name, process.code, True, len(process.restarted_at))]
