"""`tidemill bench broker`: equal work, real servers, figures under fixed names, and nothing left behind."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from rich.console import Console

from broker.lifeline import child_environment
from schemas.edges import Role
from schemas.errors import ConfigError, InvariantError
from tests.tools.bench.builders import a_tiny_plan, measured, needs
from tools.bench.command import bench_broker, measure
from tools.bench.compare import run_load
from tools.bench.load import HEAD, Load, Sink, Source
from tools.bench.plan import LOADS, ROWS, SYSTEMS, TARGETS
from tools.bench.processes import HOUSE, BenchError, Crew, wait_until
from tools.bench.rows import OTHERS
from tools.bench.systems import redis, tidemill
from tools.bench.tables import show
from tools.bench.wire import Link

PATIENCE_SECONDS = 30.0


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory for temporary files with a short path: sockets will lie in it."""
    directory = Path(tempfile.mkdtemp(prefix="b"))
    yield directory
    shutil.rmtree(directory)


def test_every_row_says_how_it_is_measured() -> None:
    assert set(ROWS) == set(LOADS) | set(OTHERS)


def test_every_floor_belongs_to_a_ratio_that_is_measured() -> None:
    without_floor = {"redis_always_pipelined", "bare_zeromq"}
    assert set(TARGETS) == {f"{name}_{row}" for name in SYSTEMS for row in ("20kb", "200b_x16") if name not in without_floor}


def test_a_message_that_is_missing_ends_the_run() -> None:
    source, sink = Source(Load(name="some", bytes=64)), Sink()
    sink.take(source.take())
    source.take()
    with pytest.raises(InvariantError, match="message 1 was next, 2 came"):
        sink.take(source.take())


def test_a_source_keeps_its_window_and_flags_its_last_message() -> None:
    source = Source(Load(name="some", bytes=64, window=2, messages_max=3))
    sent = [source.take(), source.take()]
    assert source.room == 0
    source.acknowledged(2)
    sent.append(source.take())
    assert [HEAD.unpack_from(message)[2] for message in sent] == [0, 0, 1]
    assert source.ended
    assert source.room == 0
    assert {len(message) for message in sent} == {64}


@pytest.mark.parametrize("per_commit", [1, 16])
def test_all_messages_go_through_our_broker_and_are_acknowledged(per_commit: int) -> None:
    with Crew() as crew:
        server = tidemill.Server(crew)
        server.start()
        run = run_load(crew, server, Load(name="some", bytes=200, per_commit=per_commit, window=32, seconds=20.0, messages_max=100))
        server.stop()
    assert run.messages == 100
    assert run.rate > 0


def test_ratios_against_the_broker_without_journal_stand_under_their_names() -> None:
    found = measured(a_tiny_plan("20kb", "200b_x16", against=("no_journal",)))
    assert set(found["ratios"]) == {"no_journal_20kb", "no_journal_200b_x16"}
    assert found["rows"]["20kb"]["systems"]["tidemill"]["messages"]["median"] == 40
    assert {"cores", "load_average", "filesystem", "loop_slowdown"} <= set(found["machine"])


def test_all_messages_go_through_bare_zeromq_too() -> None:
    found = measured(a_tiny_plan("20kb", "200b_x16", against=("bare_zeromq",)))
    assert {found["rows"][row]["systems"]["bare_zeromq"]["messages"]["median"] for row in ("20kb", "200b_x16")} == {40}


@pytest.mark.parametrize("name", ["redis_always", "redis_always_pipelined"])
def test_redis_does_the_same_work(name: str) -> None:
    needs(name)
    found = measured(a_tiny_plan("200b_x16", against=(name,)))
    assert found["ratios"].keys() == {f"{name}_200b_x16"}
    assert found["rows"]["200b_x16"]["systems"][name]["messages"]["median"] == 40


def test_a_unit_is_atomic_on_redis_too() -> None:
    needs("redis_always")
    with Crew() as crew:
        server = redis.Server(crew)
        server.start()
        run_load(crew, server, Load(name="units", bytes=200, per_commit=16, messages_max=40))
        log = b"".join(path.read_bytes() for path in server.folder.rglob("*.aof"))
        server.stop()
    units = [count for unit in log.split(b"MULTI")[1:] if (count := unit.count(b"XADD"))]
    assert units == [16, 16, 8]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rabbitmq_quorum", "nats_always"])
def test_the_slow_starters_do_the_same_work(name: str) -> None:
    needs(name)
    found = measured(a_tiny_plan("20kb", "latency", against=(name,)))
    assert found["ratios"].keys() == {f"{name}_20kb", f"{name}_latency"}
    assert found["rows"]["20kb"]["systems"][name]["messages"]["median"] == 40


def test_a_system_that_is_not_installed_is_skipped_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = measured(a_tiny_plan("200b_x16", against=("redis_always",)))
    assert found["skipped"] == {"redis_always": "no redis-server: apt-get install redis-server"}
    assert found["ratios"] == {}


def test_the_rows_of_our_broker_alone_have_figures_and_a_table() -> None:
    found = measured(a_tiny_plan("cpu", "clients", "core", "placement", "recovery"))
    assert found["rows"]["clients"][0]["turns"] > 0
    assert found["rows"]["core"][0]["turns_per_second"] > 0
    assert found["rows"]["placement"]["turns_in_flight"] == 16
    assert found["rows"]["recovery"][0]["journal_bytes"] > 1 << 20
    assert set(found["rows"]["cpu"]) == {"20kb", "200b_x16", "200b"}
    page = io.StringIO()
    show(found, Console(file=page, width=200))
    assert "turns per second" in page.getvalue()


def test_what_encryption_costs_is_measured_between_neighbours_on_tcp() -> None:
    found = measured(a_tiny_plan("curve"))
    assert [row["load"] for row in found["rows"]["curve"]] == ["20kb", "200b_x16"]
    assert all(row["ratio"]["median"] > 0 and row["curve_per_second"]["median"] > 0 for row in found["rows"]["curve"])
    page = io.StringIO()
    show(found, Console(file=page, width=250))
    assert "curve per second" in page.getvalue()


def test_the_run_with_encryption_is_encrypted() -> None:
    with Crew() as crew:
        server = tidemill.Curve(crew)
        server.start()
        assert server.endpoint.startswith("tcp://127.0.0.1:")
        with zmq.Context() as context:
            link = Link(context, server.endpoint, Role.WEIGHT_SYNC, "stranger")
            link.hello({})
            assert not link.socket.poll(500)
            link.socket.close(linger=0)
        assert run_load(crew, server, Load(name="few", bytes=200, messages_max=8)).messages == 8
        server.stop()


def test_a_row_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no row is called 'episodes'; did you mean episode\?"):
        bench_broker(None, quick=True, only="episodes", against="")


def test_another_system_that_does_not_come_up_is_skipped_and_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("redis_always")

    def broken(_: redis.Server) -> None:
        raise BenchError("redis was not up within a moment")

    monkeypatch.setattr(redis.Server, "start", broken)
    kept: list[dict[str, Any]] = []
    found = measure(a_tiny_plan("20kb", "200b", against=("redis_always", "no_journal")), Console(file=io.StringIO()), kept.append)
    assert found["skipped"] == {"redis_always": "20kb: redis was not up within a moment"}
    assert found["ratios"].keys() == {"no_journal_20kb", "no_journal_200b"}
    assert [sorted(each["rows"]) for each in kept] == [["20kb"], ["200b", "20kb"]]


def test_a_server_that_does_not_come_up_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start([sys.executable, "-c", "raise SystemExit('no port is free')"], tmp_path / "server.log")
        with pytest.raises(BenchError, match="no port is free"):
            wait_until(lambda: False, process, tmp_path / "server.log")


def test_leaving_a_crew_ends_its_processes_and_their_children() -> None:
    with Crew() as crew:
        process = crew.start(["sh", "-c", "sleep 1000 & sleep 1000; true"], crew.directory / "log")
        head = psutil.Process(process.pid)
        _until(lambda: len(head.children()) == 2)
        family = [head, *head.children()]
    assert not any(_alive(member) for member in family)
    assert not crew.directory.exists()


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_nothing(scratch: Path, blow: signal.Signals) -> None:
    with a_running_benchmark(scratch) as process:
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, blow)
        assert process.wait(PATIENCE_SECONDS) == 128 + blow
    assert not any(_alive(member) for member in family)
    assert list(scratch.iterdir()) == []


def test_a_killed_benchmark_takes_its_processes_along(scratch: Path) -> None:
    with a_running_benchmark(scratch) as process:
        family = psutil.Process(process.pid).children(recursive=True)
    _until(lambda: not any(_alive(member) for member in family))
    assert len(family) >= 3


@contextmanager
def a_running_benchmark(scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in the middle of a run; killed at the end."""
    command = [sys.executable, "-P", "-m", "tools", "bench", "broker", "--only", "20kb", "--against", "no_journal"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=child_environment() | {"TMPDIR": str(scratch)}, cwd=HOUSE)
    try:
        head = psutil.Process(process.pid)
        _until(lambda: sum("tools.bench.worker" in " ".join(_words(child)) for child in head.children()) == 2)
        yield process
    finally:
        process.kill()
        process.wait()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def _alive(member: psutil.Process) -> bool:
    try:
        return bool(member.is_running() and member.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _words(member: psutil.Process) -> list[str]:
    try:
        return list(member.cmdline())
    except psutil.NoSuchProcess:
        return []
