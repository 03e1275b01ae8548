"""The processes of one run, found by what they were started as, from `tidemill up` downwards.

Promises to remember every process that was ever seen, and to tell which of them outlived the run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import psutil

GONE_S = 5.0
"""How long the kernel may take to end what was left behind."""


def name_of(command: Sequence[str]) -> str:
    """`broker`, or the name that a host or a stage was started under; empty for anything else."""
    if "-m" not in command:
        return ""
    module = command[command.index("-m") + 1]
    if module == "broker":
        return "broker"
    if module in ("stages.host", "stages.service.lifeline") and "--name" in command:
        return command[command.index("--name") + 1]
    return ""


class Prey:
    """What runs below the process `root`."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._seen: set[psutil.Process] = set()

    def by_name(self) -> dict[str, psutil.Process]:
        """Those that can be struck now."""
        found: dict[str, psutil.Process] = {}
        for process in self._below():
            self._seen.add(process)
            try:
                found.setdefault(name_of(process.cmdline()), process)
            except psutil.Error:
                continue
        found.pop("", None)
        return found

    def _below(self) -> list[psutil.Process]:
        try:
            below: list[psutil.Process] = self._root.children(recursive=True)
        except psutil.Error:
            return []
        return below

    def left(self) -> list[int]:
        """Pids that are still there a while after the run has ended."""
        until = time.monotonic() + GONE_S
        while (left := [process.pid for process in self._seen if is_there(process)]) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def end(self) -> None:
        """Ends all that is left."""
        for process in [process for process in self._seen if is_there(process)]:
            strike(process, signal.SIGKILL)


def is_there(process: psutil.Process) -> bool:
    """Alive; a process that was ended and not yet buried is not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def strike(process: psutil.Process, number: signal.Signals) -> bool:
    """False where it was gone already."""
    try:
        process.send_signal(number)
    except psutil.Error:
        return False
    return True
