"""What a benchmark found, as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from tools.bench.plan import TARGETS


def show(found: dict[str, Any], console: Console) -> None:
    """All tables, the machine first."""
    _machine(found["machine"], console)
    comparisons = {name: row for name, row in found["rows"].items() if isinstance(row, dict) and "systems" in row}
    if comparisons:
        console.print(_comparisons(comparisons))
        console.print("per second: acknowledged by their consumer, median over rounds and range; ratio: ours over theirs in a round.")
    for name, why in found["skipped"].items():
        console.print(f"[yellow]{name} was skipped: {why}")
    others = {name: row for name, row in found["rows"].items() if name not in comparisons}
    if "cpu" in others:
        console.print(_profile(others.pop("cpu")))
    for name, row in others.items():
        console.print(_plain(name, row if isinstance(row, list) else [row]))


def _machine(machine: dict[str, Any], console: Console) -> None:
    load = " ".join(f"{value:.1f}" for value in machine["load_average"])
    console.print(
        f"{machine['cores']} cores, kernel {machine['kernel']}, Python {machine['python']}, {machine['filesystem']}; load {load}; "
        f"a fixed loop took {machine['loop_slowdown']:.2f} times its least (worst {machine['loop_slowdown_worst']:.1f}); "
        f"durable 4 KiB write {machine['durable_4k_p50_ms']:.2f} ms"
    )
    if machine["filesystem"] == "tmpfs":
        console.print("[red]The scratch directory lies in memory: nothing here is durable. Set TMPDIR to a directory on disk.")


def _comparisons(rows: dict[str, Any]) -> Table:
    table = Table(title="Brokers", title_justify="left")
    for column in ("load", "system", "per second", "ratio", "at least / aim", "ack ms p50 / p99", "delivery ms p50 / p99",
                   "CPU us: server, producer, consumer"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("load", "system") else "right")
    for load, row in rows.items():
        for name, system in row["systems"].items():
            table.add_row(load if name == "tidemill" else "", name, *_cells(f"{name}_{load}", system, row["ratios"].get(name)))
        table.add_section()
    return table


def _cells(key: str, system: dict[str, Any], ratio: dict[str, Any] | None) -> list[str]:
    return [
        _range(system["rate"], ".0f"), _range(ratio, ".2f") if ratio else "", _verdict(key, ratio),
        _pair(system, "ack_p50_ms", "ack_p99_ms"), _pair(system, "delivery_p50_ms", "delivery_p99_ms"),
        ", ".join(f"{system[side]['median']:.0f}" for side in ("server_cpu_us", "producer_cpu_us", "consumer_cpu_us")),
    ]  # fmt: skip


def _verdict(key: str, ratio: dict[str, Any] | None) -> str:
    if key not in TARGETS or ratio is None:
        return ""
    floor, aim = TARGETS[key]
    colour = "green" if ratio["median"] >= aim else "yellow" if ratio["median"] >= floor else "red"
    return f"[{colour}]{floor:g} / {aim:g}"


def _range(value: dict[str, float], form: str) -> str:
    return f"{value['median']:{form}} ({value['min']:{form}} - {value['max']:{form}})"


def _pair(system: dict[str, Any], first: str, second: str) -> str:
    return f"{system[first]['median']:.2f} / {system[second]['median']:.2f}"


def _profile(rows: dict[str, Any]) -> Table:
    table = Table(title="Where the broker's processor time goes, microseconds a message", title_justify="left")
    table.add_column("part")
    for load in rows:
        table.add_column(load, justify="right")
    for kind in ("threads_us", "parts_us"):
        most = {name: max(row[kind].get(name, 0.0) for row in rows.values()) for row in rows.values() for name in row[kind]}
        for name in sorted(most, key=lambda name: -most[name])[:16]:
            label = f"thread {name}" if kind == "threads_us" else name
            table.add_row(label, *(f"{row[kind].get(name, 0.0):.2f}" for row in rows.values()))
        table.add_section()
    return table


def _plain(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=name, title_justify="left")
    if len(rows) == 1:
        table.add_column("figure")
        table.add_column("value", justify="right")
        for column, value in rows[0].items():
            table.add_row(column.replace("_", " "), _cell(value))
        return table
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _range(value, ".1f" if value["max"] >= 10 else ".2f")
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"
