"""The last thing that a person sees of a run: its summary, or what failed, with the last log lines and what to try.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tools.up.facts import all_failed, clock, ledger_line
from tools.up.snapshot import LedgerRow

SHOWN_LINES = 10
HARMLESS = frozenset({"debug", "info"})
"""Levels of log lines from which nobody learns why a process ended."""


class RunFailure(Struct, frozen=True, kw_only=True):
    """Why a run ended badly; the same fields as the broker's `failure.json`."""

    stage: str
    reason: str
    last_lines: tuple[str, ...] = ()
    advice: str = ""


def failure_text(failure: RunFailure, directory: Path) -> str:
    """What happened, where, the last words, what to try."""
    lines = [f"the run failed: {failure.stage}: {failure.reason}"]
    if failure.last_lines:
        log = directory / "logs" / f"{failure.stage}.log"
        lines += [f"last lines of {log if log.exists() else failure.stage}:"]  # on another host it is not here
        lines += [f"  {readable(line)}" for line in failure.last_lines[-SHOWN_LINES:]]
    lines += [f"what to try: {failure.advice}"] if failure.advice else []
    return "\n".join([*lines, f"the run directory: {directory}"])


def readable(line: str) -> str:
    """A JSON log line as level, event and the rest; any other line as it is."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or "event" not in entry:
        return line
    rest = " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("event", "level", "timestamp"))
    return f"{entry.get('level', '')} {entry['event']} {rest}".strip()


def last_word(lines: Sequence[str]) -> str:
    """The last line that tells of something wrong, as text: no JSON log line, or a warning at least. Empty where none does."""
    telling = (line for line in reversed(lines) if line.strip() and level_of(line) not in HARMLESS)
    return readable(next(telling, "")).strip()


def level_of(line: str) -> str:
    """Of a JSON log line; empty for any other line."""
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    return str(entry.get("level", "")) if isinstance(entry, dict) and "event" in entry else ""


def summary_page(summary: dict[str, Any], directory: Path) -> RenderableType:
    """Accuracy (or mean reward) before and after, times, goodput, where the time went, the run directory."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in summary_rows(summary):
        table.add_row(Text(name, style="dim"), Text(value, style="bold"))
    table.add_row(Text("run directory", style="dim"), Text(str(directory), overflow="fold"))
    return Group(Text(""), table, *_time_tables(summary))


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of what the summary holds, in the order of interest."""
    rows: list[tuple[str, str]] = []
    rows += _evaluated(summary)
    rows += [("steps", str(summary["steps"]))] if "steps" in summary else []
    times = (("training", "train_seconds"), ("wall time", "wall_seconds"))
    rows += [(name, clock(summary[key])) for name, key in times if summary.get(key) is not None]
    if summary.get("goodput_tokens_per_second") is not None:
        rows.append(("goodput", f"{summary['goodput_tokens_per_second']:,.0f} trained tokens/s"))
    if isinstance(summary.get("ledger"), dict):
        rows.append(("tickets", _ledger(summary["ledger"])))
    return rows


def _evaluated(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Both evaluations; none where there was none, or nothing is known of either."""
    ends = {end: (summary.get(f"accuracy_{end}"), summary.get(f"evaluation_failed_{end}")) for end in ("before", "after")}
    problems = summary.get("evaluation_problems") or 0
    if all(value is None and not failed for value, failed in ends.values()):
        return []
    held_out = f" on {problems} held-out problems" if any(value is not None for value, _ in ends.values()) and problems else ""
    parts = [_share(end, value, failed, problems) for end, (value, failed) in ends.items()]
    return [(summary.get("evaluation_measure", "accuracy"), ", ".join(parts) + held_out)]


def _share(end: str, value: float | None, failed: int | None, problems: int) -> str:
    """An evaluation of which all failed has measured nothing: that is no 0."""
    if value is not None:
        return f"{value:.3f} {end}" + (f" ({failed} failed)" if failed else "")
    return f"not measured {end} ({all_failed(problems)})" if failed else f"unknown {end}"


def _ledger(ledger: dict[str, Any]) -> str:
    """Tickets by ending, in the words of the live view."""
    return ledger_line(msgspec.convert(ledger, LedgerRow, strict=False))


def _time_tables(summary: dict[str, Any]) -> Sequence[RenderableType]:
    """Where the time went: one row a process, its columns as the summary names them."""
    rows = summary.get("time")
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()) or not rows:
        return ()
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where the time went")
    for column in columns:
        table.add_column(column.removesuffix("_seconds") + " s", justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[column]:.1f}" if column in row else "" for column in columns))
    return (Text(""), table)
