"""Tiny benchmarks: a few dozen messages, one round."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from tools.bench.command import measure
from tools.bench.plan import QUICK, SYSTEMS, Plan


def a_tiny_plan(*rows: str, against: tuple[str, ...] = ()) -> Plan:
    """One round of at most forty messages."""
    return replace(
        QUICK, rows=rows, against=against, rounds=1, side_rounds=1, seconds=20.0, messages_max=40, play_seconds=0.5, core_seconds=0.1,
        clients=(4,), replicas=8, turns_in_flight=16, journal_megabytes=(1,),
    )  # fmt: skip


def measured(plan: Plan) -> dict[str, Any]:
    """What the JSON file would hold."""
    return measure(plan, Console(file=io.StringIO()))


def needs(system: str) -> None:
    """Skips a test where a system is not installed, and says how to install it."""
    missing = SYSTEMS[system].missing()
    if missing is not None:
        pytest.skip(missing)
