"""The loop of turns under 1, 10, 100 and 1,000 env connections (and a replica for every sixteen): turns a second, and what they cost."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec

from tools.bench.playing import Played, Table
from tools.bench.processes import BenchError, Crew, cpu_seconds
from tools.bench.systems import tidemill

ENVS_PER_REPLICA = 16
WINDOW = 32
"""Turns a replica takes at a time: twice its share, so that a lopsided moment does not leave turns waiting."""
WARM_SECONDS = 1.0


def play(crew: Crew, envs: int, seconds: float, extra: tuple[str, ...] = ()) -> tuple[dict[str, Any], tidemill.Server]:
    """Plays on a fresh broker; returns the figures and the broker, which still runs."""
    replicas = max(1, envs // ENVS_PER_REPLICA)
    groups = max(2, (envs + 1) // 2)
    server = tidemill.Server(crew, f"schedule.groups_per_step={groups}", "broker.member_retries=1000000000",
                             "broker.budget_bytes=1000000000000", extra=extra)  # fmt: skip
    server.start()
    sides = [
        _start(crew, Table(side=side, endpoint=server.endpoint, clients=count, window=WINDOW, seconds=seconds, warm_seconds=WARM_SECONDS))
        for side, count in (("rollout", replicas), ("env", envs))
    ]
    before = cpu_seconds(server.process)
    played = _play(sides[1])
    spent = cpu_seconds(server.process) - before
    for side in sides:
        crew.end(side, grace_s=0.0)
    found = {
        "env_connections": envs, "replica_connections": replicas, "turns": played.turns, "seconds": played.seconds,
        "turns_per_second": played.turns / played.seconds, "turn_p50_ms": played.p50_ms, "turn_p99_ms": played.p99_ms,
        "broker_cpu_us_per_turn": 1e6 * spent / max(1, played.turns) * played.seconds / (played.seconds + WARM_SECONDS),
        "env_cpu_us_per_turn": 1e6 * played.cpu_seconds / max(1, played.turns),
    }  # fmt: skip
    return found, server


def _start(crew: Crew, table: Table) -> subprocess.Popen[bytes]:
    log = crew.directory / f"{table.side}-{table.clients}.log"
    process = crew.start([sys.executable, "-P", "-m", "tools.bench.playing", msgspec.json.encode(table).decode()], log, piped=True)
    line = process.stdout.readline() if process.stdout else b""
    if line != b"ready\n":
        raise BenchError(f"{table.clients} {table.side} connections did not come up:\n{log.read_text()[-2000:]}")
    return process


def _play(process: subprocess.Popen[bytes]) -> Played:
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - both are pipes
    process.stdin.write(b"go\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise BenchError("the envs' process ended without a result")
    return msgspec.json.decode(line, type=Played)
