"""`tidemill up --hosts` over a real ssh: a run on two hosts, a cut line, an end that leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.tools.up.ssh_daemon import Sshd, sshd, why_not

HOUSE = Path(__file__).resolve().parents[3]
PIPELINE = HOUSE / "compose" / "pipelines" / "calculator.toml"
PATIENCE_S = 120.0
"""A bound, never a measure."""
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "sshd is here")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Sshd]:
    folder = tmp_path / "ssh"
    folder.mkdir()
    with sshd(folder) as running:
        yield running


@dataclass
class Up:
    """One `tidemill up --hosts` with a host `head` here and a host `far` at the other end of ssh."""

    process: subprocess.Popen[str]
    folder: Path
    daemon: Sshd
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
        return [process for process in (*self.daemon.started(), *here) if process.pid != self.process.pid]

    def tethers(self) -> set[int]:
        """Far ends of a line, by pid."""
        return {process.pid for process in self.daemon.started() if "stages.host.tether" in cmdline(process)}

    def until(self, claim: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not claim():
            assert self.process.poll() is None, f"ended before {what}: {self.output()}"
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.1)

    def output(self) -> str:
        return (self.folder / "up.out").read_text()


def start(tmp_path: Path, daemon: Sshd, *settings: str, python: str = sys.executable) -> Up:
    """The command, its keys and runs in `tmp_path`."""
    endpoint = f"tcp://127.0.0.1:{a_port()}"
    (tmp_path / "hosts.toml").write_text(two_hosts(tmp_path, daemon, endpoint, python))
    command = [sys.executable, "-P", "-c", "from tools.command import main; main()", "up", str(PIPELINE), "--hosts",
               str(tmp_path / "hosts.toml"), "--name", "one", "--set", f"run.directory={tmp_path}/runs", "--set", "evaluation.problems=20",
               "--set", "schedule.groups_per_step=4", *(word for setting in settings for word in ("--set", setting))]  # fmt: skip
    environment = {**os.environ, "TIDEMILL_KEYS": str(tmp_path / "keys"), "OMP_NUM_THREADS": "1"}
    for name in ("TIDEMILL_KEY", "TIDEMILL_SERVER_KEY"):
        environment.pop(name, None)
    with (tmp_path / "up.out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment, cwd=tmp_path)
    return Up(process, tmp_path, daemon, endpoint)


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_hosts(tmp_path: Path, daemon: Sshd, endpoint: str, python: str) -> str:
    return (
        f'broker = "{endpoint}"\nssh = "{daemon.ssh}"\n'
        '[[hosts]]\nname = "head"\naddress = "local"\nslots = "cpu:0-1"\nroles = ["actor-train", "weight-sync", "reference"]\n'
        f'[[hosts]]\nname = "far"\nslots = "cpu:0"\npython = "{python}"\ndirectory = "{tmp_path}/far"\n'
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


def test_a_run_trains_on_two_hosts_over_ssh_and_leaves_no_process(tmp_path: Path, daemon: Sshd) -> None:
    up = start(tmp_path, daemon, "schedule.steps=2")
    assert up.process.wait(PATIENCE_S) == 0, up.output()
    summary = json.loads((up.run / "summary.json").read_text())
    assert (summary["steps"], summary["ledger"]["closed"]) == (2, True)
    assert {log.stem for log in (up.far / "logs").iterdir()} >= {"env-0", "rollout-0", "reward-0"}
    assert {log.stem for log in (up.run / "logs").iterdir()} >= {"actor-train-0", "weight-sync-0", "reference-0", "far"}
    key = tmp_path / "far" / "keys" / "far.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text().partition('secret = "')[2].partition('"')[0]
    assert secret
    assert not [
        file for folder in (up.run, up.far) for file in folder.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()
    ]
    assert gone_soon(up)


def test_a_line_that_is_cut_is_made_again_and_the_run_goes_on(tmp_path: Path, daemon: Sshd) -> None:
    up = start(tmp_path, daemon, "schedule.steps=3")
    up.until(lambda: (up.far / "logs" / "rollout-0.log").exists(), "a replica on the far host")
    before = up.tethers()
    assert before
    daemon.cut()
    up.until(lambda: bool(up.tethers() - before), "another line")
    assert up.process.wait(PATIENCE_S) == 0, up.output()
    assert json.loads((up.run / "summary.json").read_text())["ledger"]["closed"]
    assert "far ended with exit code 255" in up.output()
    assert gone_soon(up)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_command_is_the_end_of_every_host(tmp_path: Path, daemon: Sshd, how: signal.Signals) -> None:
    up = start(tmp_path, daemon, "schedule.steps=1000")
    up.until(lambda: (up.far / "logs" / "env-0.log").exists(), "an env on the far host")
    assert up.tethers()
    assert len(up.left()) >= 8
    up.process.send_signal(how)
    code = up.process.wait(PATIENCE_S)
    assert code == (130 if how is signal.SIGINT else -9), up.output()
    assert gone_soon(up)


def test_a_python_that_is_not_there_is_named_at_once(tmp_path: Path, daemon: Sshd) -> None:
    up = start(tmp_path, daemon, "schedule.steps=1", python="/nowhere/python")
    assert up.process.wait(PATIENCE_S) == 1
    assert "far: cannot be started there: no such python" in up.output()
    assert gone_soon(up)
