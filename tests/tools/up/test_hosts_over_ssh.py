"""`tidemill up --hosts` over a real ssh, and over another command: a run on two hosts, a cut line, an end that leaves nothing behind."""

from __future__ import annotations

import json
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.up.ssh_daemon import Sshd, sshd, why_not
from tests.tools.up.two_ends import MARK, PATIENCE_S, Up, gone_soon, start


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Sshd]:
    if why_not():
        pytest.skip(why_not())
    folder = tmp_path / "ssh"
    folder.mkdir()
    with sshd(folder) as running:
        yield running


def over_ssh(tmp_path: Path, daemon: Sshd, *settings: str, python: str = sys.executable) -> Up:
    return start(tmp_path, "", daemon.folder, *settings, python=python, ssh=daemon.ssh)


def by_command(tmp_path: Path, *settings: str) -> Up:
    """`env` stands for any command that runs another somewhere."""
    return start(tmp_path, f'connect = "env {MARK}={tmp_path}"\n', tmp_path, *settings)


def test_a_run_trains_on_two_hosts_over_ssh_and_leaves_no_process(tmp_path: Path, daemon: Sshd) -> None:
    up = over_ssh(tmp_path, daemon, "schedule.steps=2")
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
    up = over_ssh(tmp_path, daemon, "schedule.steps=3")
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
    up = over_ssh(tmp_path, daemon, "schedule.steps=1000")
    up.until(lambda: (up.far / "logs" / "env-0.log").exists(), "an env on the far host")
    assert up.tethers()
    assert len(up.left()) >= 8
    up.process.send_signal(how)
    code = up.process.wait(PATIENCE_S)
    assert code == (130 if how is signal.SIGINT else -9), up.output()
    assert gone_soon(up)


def test_a_python_that_is_not_there_is_named_at_once(tmp_path: Path, daemon: Sshd) -> None:
    up = over_ssh(tmp_path, daemon, "schedule.steps=1", python="/nowhere/python")
    assert up.process.wait(PATIENCE_S) == 1
    assert "far: cannot be started there: no such python" in up.output()
    assert gone_soon(up)


def test_a_host_is_reached_by_any_command_that_runs_another(tmp_path: Path) -> None:
    up = by_command(tmp_path, "schedule.steps=1")
    assert up.process.wait(PATIENCE_S) == 0, up.output()
    assert (up.far / "logs" / "rollout-0.log").exists()
    assert gone_soon(up)
