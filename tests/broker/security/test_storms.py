"""Many at once, out of descriptors, forked, or twice the same: who was served goes on being served."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Client
from schemas.codec import encode_message
from schemas.edges import Role
from schemas.errors import TidemillError
from schemas.messages import Refuse, StatusAsked, Welcome
from tests.broker.edge_doubles import a_hello
from tests.broker.security.gate import Gate, Street, a_gate, an_open_gate
from tests.skeleton.broker_process import BrokerProcess
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

MANY = 1_000
FILES = 96
HOUSE = Path(__file__).resolve().parents[3]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with an_open_gate(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_a_thousand_clients_with_keys_are_back_within_seconds_of_a_restart(tmp_path: Path, street: Street) -> None:
    config = a_run_config(tmp_path, "broker.heartbeat_s=1")
    with a_gate(tmp_path / "gate", crowd=tuple(Role)) as gate:  # for its keys alone
        keys, directory = gate.client("crowd"), gate.keys
    assert directory is not None
    config["broker"]["keys"] = str(directory.path)
    broker = BrokerProcess(tmp_path / "run", config, "tcp://127.0.0.1:*")
    try:
        broker.start()
        broker.endpoint = (broker.run / "endpoint").read_text()
        crowd = [street.knock(broker.endpoint, f"env-{number}/i1", keys) for number in range(MANY)]
        hellos = [encode_message(a_hello(Role.ENV, f"env-{number}")) for number in range(MANY)]

        def all_welcome() -> float:
            began = time.monotonic()
            for one, hello in zip(crowd, hellos, strict=True):
                one.socket.send(hello)
            for one in crowd:
                one.hear_a(Welcome)
            return time.monotonic() - began

        first = all_welcome()
        broker.kill()
        broker.start()
        again = all_welcome()
        print(f"{MANY} clients welcome: first {first:.2f} s, after the restart {again:.2f} s")
    finally:
        broker.close()


def test_out_of_descriptors_the_broker_goes_on_and_takes_new_ones_when_others_leave(tmp_path: Path, street: Street) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(a_run_config(tmp_path)))
    run = tmp_path / "run"
    run.mkdir()

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))

    command = [sys.executable, "-m", "broker", "--run-directory", str(run), "--config", str(config), "--endpoint", "tcp://127.0.0.1:*"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=HOUSE, stdout=log, stderr=log, preexec_fn=few_files)
    try:
        until(lambda: (run / "endpoint").exists() and (run / "endpoint").read_text(), "the broker binds", (tmp_path / "log").read_text)
        endpoint = (run / "endpoint").read_text()
        served = street.knock(endpoint, "first/i1")
        served.ask_status()
        crowd = [street.knock(endpoint, f"crowd-{number}/i1") for number in range(2 * FILES)]
        for one in crowd:
            one.say(StatusAsked())
        answered: set[int] = set()

        def as_many_as_fit() -> bool:
            answered.update(number for number, one in enumerate(crowd) if number not in answered and one.socket.poll(0))
            return len(answered) > FILES // 2

        until(as_many_as_fit, "those that fit are served")
        assert len(answered) < len(crowd)
        served.ask_status()
        for number in answered:
            crowd[number].socket.close()
        waiting = [one for number, one in enumerate(crowd) if number not in answered]
        until(lambda: any(one.socket.poll(0) for one in waiting), "one that waited is served once others have left")
        served.ask_status()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_client_used_in_a_forked_child_says_so_and_the_parents_goes_on(gate: Gate) -> None:
    client = Client(gate.endpoint, Role.ENV, "env-0", lambda base: base)
    client.say_hello()
    until(lambda: any(isinstance(message, Welcome) for message, _ in client.poll(0.05)), "the welcome")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # must not return into pytest, whatever happens
        said = []
        for act in (lambda: client.poll(0), lambda: client.heartbeat({}, "")):
            try:
                act()
                said.append("nothing")
            except TidemillError as error:
                said.append(type(error).__name__)
        client.close()
        os.write(writing, " ".join(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == "InvariantError InvariantError"
    assert os.waitpid(child, 0)[1] == 0
    client.heartbeat({"alive": 1.0}, "")
    until(lambda: gate.driver.state.clients["env-0"].stats.get("alive"), "the parent is still heard")
    client.close()


def test_of_two_processes_with_one_routing_id_the_newer_works_and_the_older_is_told_that_it_is_fenced(
    tmp_path: Path, street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transport.PING_MS", 50)
    monkeypatch.setattr("broker.transport.PING_TIMEOUT_MS", 400)
    with an_open_gate(tmp_path) as gate:
        check_twins(gate, street)


def check_twins(gate: Gate, street: Street) -> None:
    older = street.knock(gate.endpoint, "env-0/i1")
    assert isinstance(older.hello(Role.ENV, "env-0", pid=100), Welcome)
    newer = street.knock(gate.endpoint, "env-0/i1")
    welcome = newer.hello(Role.ENV, "env-0", pid=200)
    assert isinstance(welcome, Welcome)
    assert welcome.epoch == 2
    until(lambda: older.say(a_hello(Role.ENV, "env-0", pid=100)) or older.socket.poll(100), "the older one is back, and answered")
    told = older.hear_a(Refuse)
    assert (told.reason, told.fatal) == ("fenced", True)
    older.socket.close()
    until(lambda: newer.say(a_hello(Role.ENV, "env-0", pid=200)) or newer.socket.poll(100), "the newer one goes on")
    assert newer.hear_a(Welcome).epoch == 2


def test_a_client_that_does_not_read_is_given_up_and_may_come_back(gate: Gate, street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = street.knock(gate.endpoint, "env-0/i1")
    assert isinstance(deaf.hello(Role.ENV, "env-0"), Welcome)
    witness = street.knock(gate.endpoint, "witness/i1")
    gate.transport._choked.add(b"env-0/i1")  # what a full pipe leaves behind; filling one takes 16,384 messages and the kernel's buffers
    until(lambda: not gate.driver.state.clients["env-0"].connected, "it is given up")
    assert witness.ask_status()
    assert isinstance(deaf.hello(Role.ENV, "env-0"), Welcome)
