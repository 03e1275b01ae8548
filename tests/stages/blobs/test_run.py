"""The channel as part of a run: a real broker with keys, the server as a process, a machine that has nothing but its key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.client import Client
from broker.keys import ClientKeys, KeyDirectory
from schemas.edges import Role
from schemas.errors import BlobError
from schemas.messages import Hello, StopAsked, Welcome
from stages.blobs.arrivals import Wanted, bring, own_depot
from stages.blobs.cache import DIRECTORY_VARIABLE
from stages.blobs.model import model_at_hand, tokenizer_at_hand
from stages.blobs.outline import directory_files
from stages.blobs.serving import address_towards, serve
from stages.blobs.shelf import Shelf
from stages.blobs.stage import BlobStage
from tests.skeleton.broker_process import HOUSE, BrokerProcess
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until
from tests.stages.blobs.builders import PLENTY, a_directory, same, serving, some_keys
from tests.stages.env.builders import a_welcome
from tools.bench.processes import free_port

ELSEWHERE = "/of/another/machine"


class OtherMachine(Shelf):
    """Shares a directory under a name that is none on this machine."""

    def __init__(self, directory: Path) -> None:
        super().__init__(None, [directory])
        self._real = directory

    def _inside(self, place: str) -> Path:
        return super()._inside(place.replace(ELSEWHERE, str(self._real)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def the_welcome(model: str, *sources: object) -> Welcome:
    import msgspec

    return msgspec.structs.replace(a_welcome(Path(model)), sources=sources)


def model_of(welcome: Welcome) -> Path:
    return Path(welcome.config["model"]["path"])


def test_a_model_that_is_here_is_read_where_it_is(tmp_path: Path, cache: Path) -> None:
    model = a_directory(tmp_path / "model")
    welcome = the_welcome(str(model))
    assert model_at_hand(welcome, None) is welcome
    assert not cache.exists()


def test_a_model_that_is_not_here_is_fetched(tmp_path: Path) -> None:
    model = a_directory(tmp_path / "model")
    with serving(model, shelf=OtherMachine(model)) as (_, source):
        found = model_at_hand(the_welcome(ELSEWHERE, source), None)
        assert same(model_of(found), model)


def test_who_reads_texts_only_fetches_no_weights(tmp_path: Path) -> None:
    model = a_directory(tmp_path / "model")
    with serving(model, shelf=OtherMachine(model)) as (_, source):
        found = tokenizer_at_hand(the_welcome(ELSEWHERE, source), None)
        assert sorted(path.name for path in model_of(found).iterdir()) == ["config.json"]


def test_a_model_that_nobody_has_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BlobError, match=r"model\.path .*tidemill host"):
        model_at_hand(the_welcome(ELSEWHERE), None)
    with serving(a_directory(tmp_path / "other")) as (_, source), pytest.raises(BlobError, match="not shared here"):
        model_at_hand(the_welcome(ELSEWHERE, source), None)


def test_a_broker_of_this_machine_alone_needs_no_server(tmp_path: Path) -> None:
    for endpoint in ("ipc:///tmp/x", "tcp://127.0.0.1:7700", "tcp://localhost:7700"):
        assert serve(endpoint, own_depot(PLENTY).cache, [tmp_path], None) is None


def test_the_address_to_serve_at_leads_to_the_broker() -> None:
    assert address_towards("tcp://127.0.0.1:7700") == "127.0.0.1"
    assert address_towards("tcp://[::1]:7700") == "[::1]"


@contextmanager
def a_guarded_broker(folder: Path, keys: KeyDirectory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(
        folder / "run", a_run_config(folder), f"tcp://127.0.0.1:{free_port()}", environment={"TIDEMILL_KEYS": str(keys.path)}
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@contextmanager
def a_server_process(broker: BrokerProcess, keys: ClientKeys, key_file: Path, *shared: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "stages.blobs", "--broker", broker.endpoint, "--listen", "tcp://127.0.0.1:*", "--name", "blobs-a"]
    for path in shared:
        command += ["--share", str(path)]
    environment = os.environ | {"TIDEMILL_KEY": str(key_file), "TIDEMILL_SERVER_KEY": keys.server}
    with (broker.run / "blobs.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=HOUSE, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def welcome_of(broker: BrokerProcess, keys: ClientKeys, name: str) -> Welcome:
    """What a client with these keys is told."""
    client = Client(broker.endpoint, Role.OBSERVER, name, lambda base: base, keys)
    try:
        client.say_hello()
        deadline = time.monotonic() + 40.0
        while time.monotonic() < deadline:
            for message, _ in client.poll(0.1):
                if isinstance(message, Welcome):
                    return message
        raise AssertionError(f"no welcome: {broker.log()}")
    finally:
        client.close()


def test_a_machine_with_a_key_and_the_brokers_address_gets_what_another_shares(tmp_path: Path) -> None:
    origin = a_directory(tmp_path / "shared" / "0-1")
    keys, clients = some_keys(tmp_path / "keys", "machine-a", "machine-b")
    with (
        a_guarded_broker(tmp_path, keys) as broker,
        a_server_process(broker, clients["machine-a"], keys.client_file("machine-a"), origin.parent) as server,
    ):
        found: list[Welcome] = []

        def it_serves() -> bool:
            found[:] = [welcome_of(broker, clients["machine-b"], "observer-b")]
            return bool(found[0].sources)

        until(it_serves, "the server is announced", lambda: (broker.run / "blobs.log").read_text())
        (source,) = found[0].sources
        assert source.public == clients["machine-a"].pair.public
        depot = own_depot(PLENTY, clients["machine-b"])
        held = bring(depot, Wanted(place=str(origin), sources=(source,)))
        assert same(held.path, origin)
        depot.fetcher.close()

        stopper = Client(broker.endpoint, Role.OBSERVER, "observer-stop", hello, clients["machine-b"])
        until(lambda: stopped(stopper, server), "the server is sent home", lambda: (broker.run / "blobs.log").read_text())
        stopper.close()
        assert server.returncode == 0, (broker.run / "blobs.log").read_text()


def hello(base: Hello) -> Hello:
    return base


def stopped(client: Client, server: subprocess.Popen[bytes]) -> bool:
    """Asks the broker to end the run, until the server has heard of it."""
    client.poll(0.05)
    client.send(StopAsked(reason="the test is over"))
    return server.poll() is not None


def test_a_server_process_without_an_address_ends_with_what_to_do(tmp_path: Path) -> None:
    from schemas.errors import ConfigError

    stage = BlobStage("tcp://127.0.0.1:7700", "")
    with pytest.raises(ConfigError, match="--listen"):
        stage.start(a_welcome(tmp_path), None)  # type: ignore[arg-type]


def test_a_server_process_ends_politely(tmp_path: Path) -> None:
    keys, clients = some_keys(tmp_path / "keys", "machine-a")
    with (
        a_guarded_broker(tmp_path, keys) as broker,
        a_server_process(broker, clients["machine-a"], keys.client_file("machine-a")) as server,
    ):
        until(lambda: "serving" in (broker.run / "blobs.log").read_text(), "it serves")
        server.send_signal(signal.SIGTERM)
        until(lambda: server.poll() is not None, "it ends")
        assert server.returncode == 0


def test_what_is_shared_of_a_run_is_its_versions_and_the_model(tmp_path: Path) -> None:
    run = a_directory(tmp_path / "run" / "versions" / "0-0").parents[1]
    (run / "config.json").write_text("{}")
    with serving(run / "versions") as (_, source):
        depot = own_depot(PLENTY)
        assert depot.fetcher.files(str(run / "versions" / "0-0"), [source]) == directory_files(run / "versions" / "0-0")
        with pytest.raises(BlobError, match="not shared"):
            depot.fetcher.files(str(run), [source])
        depot.fetcher.close()
