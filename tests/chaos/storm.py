"""One storm: `tidemill up` on a real pipeline, and blows on its processes as scheduled.

Owns the run while it lasts: whatever happens, nothing of it is left and nothing stays frozen. Decides nothing about the
outcome; `verdict.py` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.prey import Prey, strike
from tests.chaos.schedule import TARGETS, Blow

HOUSE = Path(__file__).resolve().parents[2]
PIPELINE = HOUSE / "compose" / "pipelines" / "calculator.toml"
LOOK_S = 0.1
SAY_EVERY_S = 10.0
PATIENCE_S = 900.0
"""Longer than any run takes after its last blow, on a loaded machine: who waits so long has found a bug."""
RESTARTS = ("host.restart_limit=100000", "host.backoff_max_s=1")
"""A storm kills more often than a host should put up with by itself."""


@dataclass
class Result:
    """What was seen from outside. `struck`: each blow that landed, and the wall clock's time of it."""

    run: Path
    exit_code: int | None
    seconds: float
    struck: list[tuple[Blow, float]] = field(default_factory=list)
    missed: list[Blow] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


class Storm:
    """`say` is told what happens, line by line."""

    def __init__(self, run: Path, overrides: Sequence[str], blows: Sequence[Blow], say: Callable[[str], None]) -> None:
        self._run, self._say = run, say
        self._overrides = [*RESTARTS, *overrides]
        self._blows = list(blows)
        self._thaws: list[tuple[float, str, psutil.Process]] = []
        self._result = Result(run, None, 0.0)
        self._began = self._say_at = time.monotonic()
        self._loose_at: float | None = None

    def play(self) -> Result:
        """Until the run has ended."""
        self._run.parent.mkdir(parents=True, exist_ok=True)
        with self._run.with_suffix(".out").open("wb") as out:
            up = subprocess.Popen(self._command(), cwd=HOUSE, stdout=out, stderr=out, env=environment())
        prey = Prey(up.pid)
        try:
            self._watch(up, prey)
        finally:
            up.kill()
            up.wait()
            self._result.left = prey.left()
            prey.end()
        self._result.seconds = time.monotonic() - self._began
        return self._result

    def _command(self) -> list[str]:
        places = [f"run.directory={self._run.parent}", f"run.name={self._run.name}"]
        settings = [part for override in (*places, *self._overrides) for part in ("--set", override)]
        return [sys.executable, "-m", "tools", "up", str(PIPELINE), *settings]

    def _watch(self, up: subprocess.Popen[bytes], prey: Prey) -> None:
        while up.poll() is None:
            now = time.monotonic()
            there = prey.by_name()
            if self._loose_at is None and set(TARGETS) <= there.keys():
                self._loose_at = now
            if self._loose_at is not None:
                self._strike(there, now)
            self._thaw(now)
            self._tell(now)
            if now - self._began > PATIENCE_S + (self._blows[-1].at_s if self._blows else 0.0):
                self._say("the run does not end; it is given up")
                return
            time.sleep(LOOK_S)
        self._result.exit_code = up.returncode

    def _strike(self, there: dict[str, psutil.Process], now: float) -> None:
        assert self._loose_at is not None
        while self._blows and now >= self._loose_at + self._blows[0].at_s:
            blow = self._blows.pop(0)
            process = there.get(blow.target)
            number = signal.SIGSTOP if blow.freeze_s else signal.SIGKILL
            if process is None or not strike(process, number):
                self._result.missed.append(blow)
                self._say(f"{blow}: it is not there")
                continue
            self._result.struck.append((blow, time.time()))
            self._say(str(blow))
            if blow.freeze_s:
                self._thaws.append((now + blow.freeze_s, blow.target, process))

    def _thaw(self, now: float) -> None:
        for due in [thaw for thaw in self._thaws if thaw[0] <= now]:
            self._thaws.remove(due)
            if strike(due[2], signal.SIGCONT):
                self._say(f"{due[1]} goes on")

    def _tell(self, now: float) -> None:
        if now < self._say_at:
            return
        self._say_at = now + SAY_EVERY_S
        metrics = self._run / "metrics.jsonl"
        steps = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        frozen = ", ".join(name for _, name, _ in self._thaws) or "nobody"
        self._say(
            f"[{now - self._began:4.0f} s] {steps} steps, {len(self._result.struck)} blows, {len(self._blows)} to come, frozen: {frozen}"
        )


def environment() -> dict[str, str]:
    """One compute thread a process, as everywhere."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
