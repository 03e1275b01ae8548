"""`tidemill up --hosts` from one host to another by a real ssh: nothing in common but the network and a login."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import pytest

from tests.hosts.lan import Lan
from tests.hosts.laws import Law
from tests.hosts.machine import HOUSE, Machine, Process
from tests.skeleton.waiting import until
from tests.tools.up.ssh_daemon import SSHD, why_not

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(bool(why_not()), reason=why_not() or "sshd is here")]
FAR = Law(delay_s=0.01, jitter_s=0.003)
PIPELINE = HOUSE / "compose" / "pipelines" / "calculator.toml"
PATIENCE_S = 400.0
"""A bound, never a measure."""
SSHD_CONFIG = (
    "Port 22\nHostKey /tmp/host_key\nAuthorizedKeysFile /tmp/user_key.pub\nPidFile none\nStrictModes no\nUsePAM no\n"
    "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
)
SSH_CONFIG = (
    "Host *\n  IdentityFile /tmp/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile /tmp/known_hosts\n"
    "  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n"
)


def a_login(head: Machine, far: Machine) -> Process:
    """`head` may log in at `far`; the daemon there."""
    for machine, key in ((far, "host_key"), (head, "user_key")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(machine.world / key)], check=True)
    shutil.copyfile(head.world / "user_key.pub", far.world / "user_key.pub")
    (far.world / "sshd_config").write_text(SSHD_CONFIG)
    (head.world / "ssh_config").write_text(SSH_CONFIG)
    daemon = far.start("sshd", SSHD, "-f", "/tmp/sshd_config", "-D", "-e")
    until(lambda: "listening" in daemon.story(), "sshd listens", daemon.story)
    return daemon


def go(head: Machine, far: Machine, *settings: str) -> Process:
    """The one command; roles and directory as a person would write them."""
    (head.world / "hosts.toml").write_text(
        f'broker = "tcp://{head.address}:7700"\nssh = "ssh -F /tmp/ssh_config"\n'
        '[[hosts]]\nname = "head"\naddress = "local"\nslots = "cpu:0-1"\nroles = ["actor-train", "weight-sync"]\n'
        f'[[hosts]]\nname = "far"\naddress = "{far.address}"\nslots = "cpu:0-1"\npython = "{sys.executable}"\ndirectory = "/tmp/far"\n'
    )
    asked = ("run.directory=/tmp/runs", "evaluation.problems=40", "schedule.groups_per_step=8", *settings)
    words = [word for setting in asked for word in ("--set", setting)]
    command = ("tidemill", "up", str(PIPELINE), "--hosts", "/tmp/hosts.toml", "--name", "one", *words)
    return head.start("up", *command, environment={"TIDEMILL_KEYS": "/tmp/keys"})


def check_the_end(head: Machine, far: Machine, up: Process) -> None:
    assert up.wait(PATIENCE_S) == 0, up.story()
    summary = json.loads(head.inside("/tmp/runs/one/summary.json").read_text())
    assert summary["ledger"]["closed"]
    logs = {log.stem for log in far.inside("/tmp/far/one/logs").iterdir()}
    assert logs >= {"env-0", "rollout-0", "reward-0", "reference-0"}
    until(lambda: not [each for each in far.living() if "stages.host" in " ".join(each.cmdline())], "the agent is gone", far.story)


def test_a_run_on_another_machine_is_one_command_and_its_model_goes_there_by_itself(lan: Lan) -> None:
    head, far = lan.host("head"), lan.host("far", hidden=("compose",))
    lan.law("far", FAR)
    a_login(head, far)
    check_the_end(head, far, go(head, far, "schedule.steps=3"))
    assert far.inside("/tmp/far/cache/trees").is_dir()


def test_a_line_cut_for_half_a_minute_is_survived_by_ssh_and_by_the_run(lan: Lan) -> None:
    head, far = lan.host("head"), lan.host("far", hidden=("compose",))
    lan.law("far", FAR)
    a_login(head, far)
    up = go(head, far, "schedule.steps=8")
    metrics = head.inside("/tmp/runs/one/metrics.jsonl")
    until(lambda: (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2) or not up.at_work, "two steps", up.story, PATIENCE_S)
    lan.cut("far")
    time.sleep(30.0)
    lan.heal("far")
    check_the_end(head, far, up)
