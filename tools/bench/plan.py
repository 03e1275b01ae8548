"""What `tidemill bench broker` measures: the loads, the systems, the rows, how often each; and the floors it is judged by."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tools.bench.compare import System
from tools.bench.load import Load
from tools.bench.processes import Crew
from tools.bench.systems import nats, rabbitmq, redis, tidemill, zeromq

KB, MB = 1024, 1 << 20


class SystemKind(Struct, frozen=True, kw_only=True):
    """A system to compare with."""

    make: Callable[[Crew], System]
    missing: Callable[[], str | None]
    """What has to be installed first, if anything."""
    loads: tuple[str, ...] = ()
    """Only these; empty: all."""


SYSTEMS: dict[str, SystemKind] = {
    "redis_always": SystemKind(make=redis.Server, missing=redis.Server.missing),
    "redis_always_pipelined": SystemKind(make=redis.Pipelined, missing=redis.Server.missing, loads=("20kb", "200b_x16")),
    "rabbitmq_quorum": SystemKind(make=rabbitmq.Server, missing=rabbitmq.Server.missing),
    "nats_always": SystemKind(make=nats.Server, missing=nats.Server.missing),
    "no_journal": SystemKind(make=tidemill.WithoutJournal, missing=tidemill.Server.missing),
    "bare_zeromq": SystemKind(make=zeromq.Server, missing=zeromq.Server.missing),
}
"""By the name under which their ratios are written."""

LOADS: dict[str, Load] = {
    load.name: load
    for load in (
        Load(name="20kb", bytes=20 * KB),
        Load(name="200b_x16", bytes=200, per_commit=16),
        Load(name="200b", bytes=200),
        Load(name="200kb", bytes=200 * KB, window=64, held=64),
        Load(name="2mb", bytes=2 * MB, window=8, held=8),
        Load(name="latency", bytes=20 * KB, window=1),
    )
}
"""By row. Large messages have a smaller window: 512 of them would measure memory, not brokers."""

MAIN_LOADS = ("20kb", "200b_x16")
OTHER_ROWS = ("curve", "cpu", "clients", "core", "placement", "episode", "recovery")
ROWS = (*LOADS, *OTHER_ROWS)

TARGETS: dict[str, tuple[float, float]] = {
    "redis_always_20kb": (5.0, 8.0), "redis_always_200b_x16": (3.0, 4.5),
    "rabbitmq_quorum_20kb": (2.0, 3.0), "rabbitmq_quorum_200b_x16": (2.5, 4.0),
    "nats_always_20kb": (6.0, 10.0), "nats_always_200b_x16": (20.0, 40.0),
    "no_journal_20kb": (0.6, 0.75), "no_journal_200b_x16": (0.6, 0.8),
}  # fmt: skip
"""Ratio: at least, and the aim."""


class Plan(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    rows: tuple[str, ...] = ROWS
    against: tuple[str, ...] = tuple(SYSTEMS)
    rounds: int = 5
    side_rounds: int = 3
    """Of loads that have no floor."""
    seconds: float = 1.5
    """The producer of a run sends so long."""
    messages_max: int = 1 << 40
    play_seconds: float = 10.0
    core_seconds: float = 5.0
    clients: tuple[int, ...] = (1, 10, 100, 1000)
    replicas: int = 1000
    turns_in_flight: int = 16_000
    journal_megabytes: tuple[int, ...] = (64, 256, 1024)


FULL = Plan()
QUICK = Plan(rounds=2, side_rounds=1, seconds=0.7, play_seconds=4.0, core_seconds=2.0, journal_megabytes=(32, 128))
