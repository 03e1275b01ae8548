"""`tidemill bench broker`: measures, shows, writes.

Returns with everything ended that it started, however it ends; a signal ends it with the shell's code for that signal.
"""

from __future__ import annotations

import difflib
import functools
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from schemas.errors import ConfigError
from tools.bench.plan import FULL, QUICK, ROWS, SYSTEMS, Plan
from tools.bench.processes import Crew
from tools.bench.rows import Measuring, steps_of
from tools.bench.tables import show

TERMINATED = 128 + signal.SIGTERM


def bench_broker(json_file: Path | None, *, quick: bool, only: str, against: str) -> None:
    """`only` and `against`: names with commas between them; empty: all. Raises ConfigError for a name that is none."""
    plan = QUICK if quick else FULL
    plan = replace(plan, rows=_named(only, ROWS, "row"), against=_named(against, tuple(SYSTEMS), "system"))
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(width=None if sys.stdout.isatty() else 200)
    show(measure(plan, console, functools.partial(_write, json_file)), console)


def _write(json_file: Path | None, found: dict[str, Any]) -> None:
    """After each row: a benchmark of half an hour that is ended leaves what it had."""
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2) + "\n")


def measure(plan: Plan, console: Console, keep: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
    """Runs the plan under a progress bar; returns what the JSON file holds, and hands it to `keep` after each row."""
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Crew() as crew, Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting")

        def tick(what: str) -> None:
            progress.update(bar, description=what, advance=1)

        measuring = Measuring(crew, plan, tick, keep)
        progress.update(bar, total=steps_of(plan, measuring))
        return measuring.measure()


def _named(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"no {what} is called {name!r}; {hint}")
    return tuple(name for name in known if name in wanted) if wanted else tuple(known)


def _terminated(_: int, __: FrameType | None) -> None:
    raise SystemExit(TERMINATED)
