"""What a supervisor that is no host of ours sees and says of a stage: its pulse, its patience, its name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.pulse import HEALTH_VARIABLE
from schemas.edges import Role
from schemas.messages import Drain
from tests.skeleton.broker_process import HOUSE
from tests.skeleton.scripted_broker import ScriptedBroker, a_scripted_broker
from tests.skeleton.waiting import until


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with a_scripted_broker() as made:
        yield made


def a_process(endpoint: str, *more: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.skeleton", Role.WEIGHT_SYNC.value, "--broker", endpoint, *more]
    return subprocess.Popen(command, cwd=HOUSE, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, log


def test_the_pulse_begins_with_the_broker_s_answer_to_the_ready_hello(broker: ScriptedBroker, tmp_path: Path) -> None:
    file = tmp_path / "healthy"
    file.write_text("left by another")
    process = a_process(broker.endpoint, **{HEALTH_VARIABLE: str(file)})
    broker.welcome()
    assert not file.exists()
    broker.welcome()
    until(lambda: file.is_file() and file.read_text().startswith("ready"), "the pulse beats")
    broker.say(Drain())
    code, log = end_of(process)
    assert code == 0, log


def test_a_process_that_never_meets_a_broker_ends_with_1_once_its_patience_is_over(tmp_path: Path) -> None:
    code, log = end_of(a_process(f"ipc://{tmp_path}/nobody", "--patience", "0.5"))
    assert code == 1
    assert f"nobody ever answered at ipc://{tmp_path}/nobody: waited for 0.5 s, and nobody answers there" in log


def test_who_listens_and_is_no_broker_is_told_from_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        endpoint = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        code, log = end_of(a_process(endpoint, "--patience", "0.5"))
    assert code == 1
    assert f"nobody ever answered at {endpoint}" in log
    assert "something listens there, but it is no broker" in log


def test_less_than_no_patience_is_bad_input(tmp_path: Path) -> None:
    code, log = end_of(a_process(f"ipc://{tmp_path}/nobody", "--patience=-1"))
    assert code == 2
    assert "expected seconds, 0 or more" in log


def test_a_process_whose_broker_has_gone_ends_once_its_patience_is_over(tmp_path: Path) -> None:
    with a_scripted_broker() as broker:
        process = a_process(broker.endpoint, "--patience", "1")
        broker.welcome()
        broker.welcome()
    code, log = end_of(process)
    assert code == 0
    assert "no broker for 1 s" in log


def test_a_name_may_hold_the_machine_s(broker: ScriptedBroker) -> None:
    process = a_process(broker.endpoint, "--name", "sync-{hostname}")
    assert broker.welcome().name == f"sync-{socket.gethostname()}"
    broker.welcome()
    broker.say(Drain())
    end_of(process)


def test_an_address_that_is_none_ends_a_process_with_2_and_says_what_is_one() -> None:
    code, log = end_of(a_process("tcp://127.0.0.1:7940x"))
    assert code == 2
    assert "expected tcp://<address>:<port> or ipc://<path>" in log
    assert "Traceback" not in log
