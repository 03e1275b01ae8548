"""A run as one page of a terminal, drawn from a snapshot. Prints nothing; remembers only the pace."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tools.up.facts import clock, evaluation_under_way, facts, ledger_line, progress_line, queue_depths, stall_lines, where
from tools.up.pace import Pace
from tools.up.snapshot import ProcessRow, Snapshot

BAR_WIDTH = 40
COLOURS = {"starting": "yellow", "ready": "green", "suspect": "magenta", "gone": "red"}


class Page:
    """`of` draws one moment."""

    def __init__(self, stall_notice_s: float) -> None:
        self._stall_notice_s = stall_notice_s
        self._pace = Pace()

    def of(self, snapshot: Snapshot, own: dict[str, int], now: float) -> RenderableType:
        """The whole page. `own`: pids of processes that are not the broker's to name; `now` in seconds."""
        self._pace.saw(snapshot.step, now)
        left_s = self._pace.left_s(snapshot.steps, now)
        parts: list[RenderableType] = [_processes(snapshot, own), _bar(snapshot), _pairs(facts(snapshot, left_s))]
        parts += [_pairs([("queues (waiting+leased)", ""), *queue_depths(snapshot)])] if snapshot.queues else []
        parts += [Text(ledger_line(snapshot.ledger), style="dim")]
        stalled = stall_lines(snapshot, self._stall_notice_s)
        parts += [Panel("\n".join(stalled), style="yellow", expand=False)] if stalled else []
        return Group(*parts)


def _processes(snapshot: Snapshot, own: dict[str, int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("process", "pid", "slots", "state", "waits for"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    named = {row.name for row in snapshot.processes}
    for name, pid in own.items():
        if name not in named:
            table.add_row(name, str(pid), "", Text("runs", style="green"), "")
    for row in snapshot.processes:
        table.add_row(row.name, str(row.pid or ""), where(row, snapshot), _state(row), row.waiting)
    return table


def _state(row: ProcessRow) -> Text:
    since = "" if row.state == "ready" else f" {row.since_s:.0f} s"
    return Text(f"{row.state}{since}", style=COLOURS.get(row.state, ""))


def _bar(snapshot: Snapshot) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0))
    playing = evaluation_under_way(snapshot)
    text = f"step {snapshot.step}/{snapshot.steps}  {snapshot.phase} {clock(snapshot.elapsed_s)}"
    if playing is not None:
        text += f"  {progress_line(playing)}"
    line.add_row(ProgressBar(total=max(1, snapshot.steps), completed=snapshot.step, width=BAR_WIDTH), text)
    return line


def _pairs(pairs: list[tuple[str, str]]) -> Text:
    text = Text()
    for name, value in pairs:
        text.append(f"{name} ", style="dim").append(f"{value}   ", style="bold")
    return text
