"""The host agent as a stage: it leases nothing, obeys `StartProcess` and `StopProcess`, and reports exits.

Owns the stage processes of one machine, by pid, and their logs. Promises that a process which dies is reported at
once, with its last lines, and started again as `RestartPolicy` says; that none of them outlives the host. Does not
know what the processes do.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import structlog

from broker.keys import client_keys
from schemas.codec import Frame
from schemas.config.broker import is_routable
from schemas.config.run import HostConfig
from schemas.edges import Role
from schemas.errors import InvariantError
from schemas.messages import BrokerMessage, Drain, Peers, ProcessExited, StartProcess, StopProcess, Welcome
from stages.blobs.cache import DIRECTORY_VARIABLE, Cache
from stages.blobs.serving import Serving, serve
from stages.host.alarm import Alarm
from stages.host.children import EXIT_NOT_STARTED, Children, why_not_started
from stages.host.core import Act, Kill, Report, Roster, Spawn, Terminate
from stages.host.machine import cores, gpus, visible_for
from stages.host.options import HostOptions
from stages.host.quarters import quarters_for
from stages.host.restarts import RestartPolicy
from stages.host.slots import cores_of, gpus_of, offered_slots, slots_named
from stages.service.stage import Delivery, Link, Ready

CLOSE_GRACE_S = 0.7
"""Between the request to end and the kill when the host itself ends, which `tidemill up` grants one second for."""

Command = Callable[[str, Role], Sequence[str]]
"""From a process's name and role to what is executed."""

log = structlog.get_logger()


def stage_command(endpoint: str, host: str) -> Command:
    """Commands that run stages against the broker at `endpoint`, in this interpreter."""

    def command(name: str, role: Role) -> Sequence[str]:
        module = f"stages.{role.replace('-', '_')}"
        # -P: a folder of the user's that is named like one of ours must not come before it.
        return (sys.executable, "-P", "-m", "stages.service.lifeline", module, "--broker", endpoint, "--name", name, "--host", host)

    return command


def restart_policy(config: HostConfig) -> RestartPolicy:
    """The policy that the configuration asks for."""
    return RestartPolicy(
        limit=config.restart_limit,
        window_s=config.restart_window_s,
        first_s=config.backoff_s,
        most_s=config.backoff_max_s,
    )


class Host:
    """See the module; the methods are those of `stages.service.stage.Stage`."""

    role = Role.HOST

    def __init__(self, command: Command, options: HostOptions = HostOptions()) -> None:  # noqa: B008 - frozen
        self._command, self._options = command, options
        self._opened = ExitStack()
        """What `close` has to end: whatever `start` got to."""

    def start(self, welcome: Welcome, link: Link) -> None:
        """Reads `host` of the configuration; makes the folder of logs. Raises ConfigError where there can be none."""
        config = HostConfig.model_validate(welcome.config.get("host", {}))
        self._link = link
        self._cores = cores()
        named = self._options.slots
        self._slots = slots_named(named, self._cores, gpus()) if named else offered_slots(config.slots, self._cores)
        self._roster = Roster(restart_policy(config))
        self._quarters = quarters_for(welcome, self._options.name, self._options.directory)
        self._children = Children(self._quarters.logs)
        self._opened.callback(self._children.close)
        self._alarm = Alarm(self._children.fileno())
        self._opened.callback(self._alarm.close)
        self._serving = self._serve(welcome)
        if self._serving is not None:
            self._opened.callback(self._serving.close)
        self._opened.callback(self._end_all)
        log.info("host at work", slots=self._slots, directory=str(self._quarters.directory), shares_run_directory=not self._quarters.own)

    def _serve(self, welcome: Welcome) -> Serving | None:
        """Gives out what this machine has: the cache that its stages fill, and the run's files where they are here."""
        config = welcome.config
        os.environ[DIRECTORY_VARIABLE] = str(self._quarters.cache)  # for the stages
        if not is_routable(self._options.broker) and not self._options.blobs:
            return None
        shared = [Path(welcome.run_directory) / "versions", Path(config["model"]["path"])] if self._quarters.shared else []
        cache = Cache(self._quarters.cache, HostConfig.model_validate(config["host"]).cache_bytes)
        return serve(self._options.broker, cache, shared, client_keys(), self._options.blobs)

    def hello(self) -> Ready:
        """Offers slots, names what runs."""
        quarters, serving = self._quarters, self._serving
        return Ready(
            slots=self._slots, running=self._roster.running, directory=quarters.own, roles=self._options.roles,
            blobs=serving.endpoint if serving is not None else "",
        )  # fmt: skip

    def deliver(self, delivery: Delivery) -> None:
        """Never called: a host opens no window."""
        raise InvariantError(f"host: was given a record of {delivery.header.queue}, but leases nothing")

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        """Obeys the orders that are a host's; others change nothing here."""
        match message:
            case StartProcess():
                self._perform(self._roster.start(message))
            case StopProcess():
                self._perform(self._roster.stop(message, time.monotonic()))
            case Drain():
                self._perform(self._roster.drain())
            case Peers() if self._serving is not None:
                self._serving.allow(message.keys)
        self._set_alarm()

    def work(self) -> bool:
        """Reaps and reports, then does what is due."""
        for name, code in self._children.reap():
            self._perform(self._roster.exited(name, code, time.monotonic()))
        self._perform(self._roster.wake(time.monotonic()))
        self._set_alarm()
        return False

    def stats(self) -> dict[str, float]:
        """How many processes run, how often one was restarted; processor seconds and memory of each."""
        running, processes = self._roster.running, self._roster.processes.values()
        restarts = sum(len(process.restarted_at) for process in processes)
        stats = {"running": float(len(running)), "restarts": float(restarts)}
        for name, pid in running.items():
            stats |= _use(name, pid)
        return stats

    def waiting(self) -> str:
        """Names the processes that are to be restarted."""
        names = [process.name for process in self._roster.processes.values() if process.restart_at is not None]
        return f"the restart of {', '.join(names)}" if names else ""

    def drained(self) -> bool:
        """True once no process is left."""
        return self._roster.ended

    def wake_fd(self) -> int | None:
        """Readable when a process has ended, or a restart or a kill is due."""
        return self._alarm.fileno()

    def close(self) -> None:
        """Ends every process: asked to, then killed after `CLOSE_GRACE_S`. May come before `start` ended."""
        self._opened.close()

    def _end_all(self) -> None:
        for name, code in self._children.end_all(CLOSE_GRACE_S).items():
            log.info("process ended with its host", process=name, code=code)

    def _set_alarm(self) -> None:
        due = self._roster.next_wake()
        self._alarm.set(None if due is None else due - time.monotonic())

    def _perform(self, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Spawn():
                    self._spawn(act)
                case Terminate():
                    log.info("process asked to end", process=act.name)
                    self._children.send(act.name, signal.SIGTERM)
                case Kill():
                    log.warning("process killed after its grace", process=act.name)
                    self._children.send(act.name, signal.SIGKILL)
                case Report():
                    self._report(act)

    def _spawn(self, act: Spawn) -> None:
        try:
            command = self._command(act.name, act.role)
            pid = self._children.start(act.name, command, cores_of(act.slots, self._cores), visible_for(gpus_of(act.slots)))
        except OSError as error:
            log.error("process could not be started", process=act.name, error=why_not_started(error))
            self._perform(self._roster.exited(act.name, EXIT_NOT_STARTED, time.monotonic()))
            return
        self._roster.spawned(act.name, pid)
        log.info("process started", process=act.name, role=act.role, pid=pid, slots=act.slots)

    def _report(self, act: Report) -> None:
        lines = (act.reason,) if act.reason else self._children.last_lines(act.name)
        self._link.send(ProcessExited(name=act.name, code=act.code, final=act.final, restarts=act.restarts, last_lines=lines))
        log.info("process ended", process=act.name, code=act.code, final=act.final, restarts=act.restarts)


def _use(name: str, pid: int) -> dict[str, float]:
    try:
        process = psutil.Process(pid)
        times, memory = process.cpu_times(), process.memory_info()
    except psutil.NoSuchProcess:
        return {}  # it has ended and is about to be reaped
    return {f"{name}.cpu_s": times.user + times.system, f"{name}.rss_bytes": float(memory.rss)}
