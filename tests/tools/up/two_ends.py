"""`tidemill up --hosts` with a host `head` here and a host `far` at the other end of a line, and a look at what runs at both ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

HOUSE = Path(__file__).resolve().parents[3]
PIPELINE = HOUSE / "compose" / "pipelines" / "calculator.toml"
PATIENCE_S = 120.0
"""A bound, never a measure."""
MARK = "TIDEMILL_TEST_FAR_END"
"""In the environment of all that runs at the far end: a folder of the test."""


def started(far_end: Path) -> list[psutil.Process]:
    """All processes at the far end, orphans included."""
    return [process for process in psutil.process_iter() if _environment(process).get(MARK) == str(far_end)]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:  # it has ended, or is somebody else's
        return {}


@dataclass
class Up:
    """One such command."""

    process: subprocess.Popen[str]
    folder: Path
    far_end: Path
    """Marks in its environment what runs at the far end."""
    endpoint: str

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "one"

    @property
    def far(self) -> Path:
        return self.folder / "far" / "one"

    def left(self) -> list[psutil.Process]:
        """What still runs, here or at the far end."""
        here = [process for process in psutil.process_iter(["cmdline"]) if self.endpoint in (process.info["cmdline"] or ())]
        return [process for process in (*started(self.far_end), *here) if process.pid != self.process.pid]

    def tethers(self) -> set[int]:
        """Far ends of a line, by pid."""
        return {process.pid for process in started(self.far_end) if "stages.host.tether" in cmdline(process)}

    def until(self, claim: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not claim():
            assert self.process.poll() is None, f"ended before {what}: {self.output()}"
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.1)

    def output(self) -> str:
        return (self.folder / "up.out").read_text()


def start(tmp_path: Path, way: str, far_end: Path, *settings: str, python: str = sys.executable, ssh: str = "ssh") -> Up:
    """The command, its keys and runs in `tmp_path`. `way`: keys of the far host's table that say how it is reached."""
    endpoint = f"tcp://127.0.0.1:{a_port()}"
    (tmp_path / "hosts.toml").write_text(two_hosts(tmp_path, endpoint, way, python, ssh))
    command = [sys.executable, "-P", "-c", "from tools.command import main; main()", "up", str(PIPELINE), "--hosts",
               str(tmp_path / "hosts.toml"), "--name", "one", "--set", f"run.directory={tmp_path}/runs", "--set", "evaluation.problems=20",
               "--set", "schedule.groups_per_step=4", *(word for setting in settings for word in ("--set", setting))]  # fmt: skip
    environment = {**os.environ, "TIDEMILL_KEYS": str(tmp_path / "keys"), "OMP_NUM_THREADS": "1"}
    for name in ("TIDEMILL_KEY", "TIDEMILL_SERVER_KEY"):
        environment.pop(name, None)
    with (tmp_path / "up.out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment, cwd=tmp_path)
    return Up(process, tmp_path, far_end, endpoint)


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_hosts(tmp_path: Path, endpoint: str, way: str, python: str, ssh: str) -> str:
    return (
        f'broker = "{endpoint}"\nssh = "{ssh}"\n'
        '[[hosts]]\nname = "head"\naddress = "local"\nslots = "cpu:0-1"\nroles = ["actor-train", "weight-sync", "reference"]\n'
        f'[[hosts]]\nname = "far"\nslots = "cpu:0"\npython = "{python}"\ndirectory = "{tmp_path}/far"\n{way}'
    )


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def gone_soon(up: Up) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while up.left():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
