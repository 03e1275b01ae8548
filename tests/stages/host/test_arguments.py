"""What `tidemill host` is told: refused in a line where it is wrong, before anything is tried."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--slots=cpu", "'cpu' is no slot"),
        ("--roles=trainer", "no such role as 'trainer'"),
        ("--roles=", "names no role"),
        ("--slots=", "'' is no slot"),
        (f"--slots=cpu:0-{max(os.sched_getaffinity(0)) + 1}", "this machine has no cpu:"),
        ("--slots=gpu:63", "this machine has no gpu:63"),
        ("--name=a/b", "is no name"),
        ("--broker=tcp://127.0.0.1", "--broker 'tcp://127.0.0.1': expected tcp://<address>:<port> or ipc://<path>"),
        ("--broker=", "--broker '': expected tcp://<address>:<port> or ipc://<path>"),
        ("--broker=127.0.0.1:7940", "expected tcp://<address>:<port> or ipc://<path>"),
        ("--broker=tcp://127.0.0.1:7940x", "expected tcp://<address>:<port> or ipc://<path>"),
        ("--broker=tcp://127.0.0.1:7940/x", "expected tcp://<address>:<port> or ipc://<path>"),
        ("--broker=tcp://[::1:7940", "expected tcp://<address>:<port> or ipc://<path>"),
        ("--broker=tcp://*:7940", "not one to connect to"),
        ("--blobs=tcp://*:7701", "expected tcp://<address>:<port>"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_right(argument: str, complaint: str) -> None:
    command = [sys.executable, "-P", "-m", "stages.host", "--broker", "tcp://127.0.0.1:9", argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("tidemill host: ")
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
