"""The far end of a line: it does what the first line of its input says, and goes with its input."""

import json
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker.keys import KeyDirectory
from schemas.edges import Role
from stages.host.tether import Orders, prepared
from tests.skeleton.waiting import until

PATIENCE_S = 30.0
"""A bound, never a measure."""
NOBODY = "tcp://127.0.0.1:9"
"""Nothing listens there: the agent waits."""


def orders(folder: Path, **fields: Any) -> bytes:
    said = {"broker": NOBODY, "name": "far", "slots": "cpu:0", "directory": str(folder / "far"), **fields}
    return json.dumps(said).encode() + b"\n"


@pytest.fixture
def tether() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "stages.host.tether"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        yield process
        process.kill()


def tell(tether: subprocess.Popen[bytes], text: bytes) -> None:
    assert tether.stdin is not None
    tether.stdin.write(text)
    tether.stdin.flush()


def the_agent(tether: subprocess.Popen[bytes]) -> psutil.Process:
    """As soon as it is there."""
    until(lambda: bool(psutil.Process(tether.pid).children()), "the agent is started")
    (agent,) = psutil.Process(tether.pid).children()
    return agent


def gone(process: psutil.Process) -> bool:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor):
        return bool(select.select([descriptor], [], [], PATIENCE_S)[0])


@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGKILL"])
def test_an_agent_goes_with_its_line(tether: subprocess.Popen[bytes], tmp_path: Path, how: str) -> None:
    tell(tether, orders(tmp_path))
    agent = the_agent(tether)
    if how == "end of input":
        assert tether.stdin is not None
        tether.stdin.close()
    else:
        tether.send_signal(getattr(signal, how))
    assert gone(agent)
    tether.wait(PATIENCE_S)


def test_the_agents_exit_code_is_the_lines(tether: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "far").write_text("no folder")
    tell(tether, orders(tmp_path, slots="tpu:0"))
    assert tether.wait(PATIENCE_S) == 2
    assert tether.stdout is not None
    assert b"'tpu:0' is no slot" in tether.stdout.read()


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b'{"name": 3}\n', b"[1, 2\n"])
def test_what_are_no_orders_is_refused(tether: subprocess.Popen[bytes], line: bytes) -> None:
    tell(tether, line)
    assert tether.wait(PATIENCE_S) == 2


def test_a_key_is_written_for_this_user_alone_and_stands_in_no_argument(tmp_path: Path) -> None:
    keys = KeyDirectory(tmp_path / "keys")
    keys.new("far", (Role.HOST,))
    text = keys.client_file("far").read_text()
    given = Orders(broker=NOBODY, name="far", slots="auto", directory=str(tmp_path / "far"), key=text, server_key="s", path=("/mine",))
    command, environment = prepared(given)
    file = Path(environment["TIDEMILL_KEY"])
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (text, 0o600, 0o700)
    secret = text.split('"')[3]
    assert not any(secret in word for word in command)
    assert secret not in repr(given)
    assert not any(secret in value for value in environment.values())
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == "/mine"
    assert prepared(given)[1]["TIDEMILL_KEY"] == str(file)  # again: the line was cut


def test_an_agent_goes_when_the_head_has_been_silent_for_too_long(tmp_path: Path) -> None:
    code = "import stages.host.tether as tether; tether.SILENCE_S = 0.5; tether.main()"
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        tell(process, orders(tmp_path))
        agent = the_agent(process)
        assert gone(agent)
        assert process.stdout is not None
        assert b"the head was silent for 0.5 s" in process.stdout.read()
