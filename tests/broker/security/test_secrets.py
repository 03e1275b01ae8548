"""Whole processes: keys by file and environment, and no secret in any log, argument, config or journal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from broker.keys import KeyDirectory, read_pair
from schemas.edges import STAGES, Role
from tests.skeleton.broker_process import BrokerProcess
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

HOUSE = Path(__file__).resolve().parents[3]
NO_KEYS = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL_")}


@pytest.fixture
def keys(tmp_path: Path) -> KeyDirectory:
    made = KeyDirectory(tmp_path / "keys")
    made.new("machine", tuple(Role))
    made.new("stranger", tuple(Role))
    return made


def secrets_of(keys: KeyDirectory) -> list[bytes]:
    files = [keys.path / "server.key", *(keys.path / "clients").glob("*.key")]
    return [read_pair(file).secret.encode() for file in files]


def told_in(folder: Path, secrets: list[bytes]) -> list[str]:
    """Files that hold one of the secrets."""
    return [str(file) for file in folder.rglob("*") if file.is_file() and any(secret in file.read_bytes() for secret in secrets)]


@pytest.fixture
def broker(tmp_path: Path, keys: KeyDirectory) -> Iterator[BrokerProcess]:
    config = a_run_config(tmp_path, "schedule.steps=1")
    config["broker"]["keys"] = str(keys.path)
    made = BrokerProcess(tmp_path / "run", config, "tcp://127.0.0.1:*")
    made.start()
    made.endpoint = (made.run / "endpoint").read_text()
    yield made
    made.close()


def a_stage(role: Role, endpoint: str, log: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.skeleton", role.value, "--broker", endpoint, "--name", f"{role.value}-0", *arguments]
    with log.open("ab") as out:
        return subprocess.Popen(command, cwd=HOUSE, env={**NO_KEYS, **environment}, stdout=out, stderr=out)


def test_a_run_whose_processes_have_keys_ends_well_and_tells_no_secret(tmp_path: Path, broker: BrokerProcess, keys: KeyDirectory) -> None:
    secrets = secrets_of(keys)
    given = {"TIDEMILL_KEY": str(keys.client_file("machine")), "TIDEMILL_SERVER_KEY": str(keys.path / "server.pub")}
    processes = [a_stage(role, broker.endpoint, broker.run / f"{role.value}.log", **given) for role in STAGES]
    try:
        assert broker.process is not None
        everyone = [psutil.Process(process.pid) for process in (broker.process, *processes)]
        arguments = [word.encode() for process in everyone for word in process.cmdline()]
        environments = [value.encode() for process in everyone for value in process.environ().values()]
        assert broker.wait() == 0
        until(lambda: all(process.poll() is not None for process in processes), "the stages go home")
        assert [process.returncode for process in processes] == [0] * len(STAGES)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(secret in word for secret in secrets for word in (*arguments, *environments))
    assert told_in(broker.run, secrets) == []


@pytest.mark.parametrize("who", ["revoked", "without a key", "secret on the command line"])
def test_a_stage_that_is_not_let_in_ends_with_status_2_and_one_clear_line(
    tmp_path: Path, broker: BrokerProcess, keys: KeyDirectory, who: str
) -> None:
    secrets = secrets_of(keys)
    log = tmp_path / "stage.log"
    copy = tmp_path / "copy.key"
    copy.touch(0o600)
    copy.write_bytes(keys.client_file("stranger").read_bytes())
    keys.revoke("stranger")
    arguments, words = {
        "revoked": (("--key", str(copy), "--server-key", keys.server().public), "does not know this key"),
        "without a key": ((), "asks for a key"),
        "secret on the command line": (("--key", secrets[0].decode(), "--server-key", keys.server().public), "name a file"),
    }[who]
    if who == "revoked":
        until(lambda: b"allow_list_read" in (broker.run / "broker.log").read_bytes(), "the broker has read the list")
    stage = a_stage(Role.ENV, broker.endpoint, log, *arguments)
    try:
        until(lambda: stage.poll() is not None, "it ends", log.read_text)
    finally:
        stage.kill()
        stage.wait()
    assert stage.returncode == 2
    assert words in log.read_text()
    assert told_in(log.parent / "run", secrets) == []
    assert not any(secret in log.read_bytes() for secret in secrets)


def test_a_broker_at_a_routable_address_without_keys_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_KEYS", str(tmp_path / "nowhere"))  # whoever runs the tests may have keys
    broker = BrokerProcess(tmp_path / "run", a_run_config(tmp_path), "tcp://0.0.0.0:*")
    with pytest.raises(AssertionError, match="tidemill keys new"):
        broker.start()
    assert broker.wait() == 2
    broker.close()


@pytest.mark.slow
def test_tidemill_up_with_keys_on_all_addresses_trains_and_tells_no_secret(tmp_path: Path, keys: KeyDirectory) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sets = ["schedule.steps=2", f"broker.endpoint=tcp://*:{port}", f"run.directory={tmp_path / 'runs'}"]
    command = [sys.executable, "-m", "tools", "up", "compose/pipelines/calculator.toml", "--name", "keyed"]
    environment = {**NO_KEYS, "TIDEMILL_KEYS": str(keys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, *(word for each in sets for word in ("--set", each))],
        cwd=HOUSE, env=environment, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert keys.client_file("local").exists()
    assert told_in(tmp_path / "runs", secrets_of(keys)) == []
    assert not any(secret in ended.stdout + ended.stderr for secret in secrets_of(keys))
