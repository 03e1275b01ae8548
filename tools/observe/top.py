"""`tidemill top`: queues and clients of a run, from a status. Pure but for nothing: draws, asks nobody."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from broker.diagnosis.scene import seconds

Row = list[str]
QUEUE_COLUMNS = ("queue", "depth", "leased", "groups", "every", "head", "in queue", "starved", "blocked", "again", "dead")
CLIENT_COLUMNS = ("client", "state", "holds", "window", "progress", "version", "waits for")
COLOURS = {"starting": "yellow", "ready": "green", "suspect": "magenta", "gone": "red"}
SEVERITY_COLOURS = {"failed": "red", "stall": "red", "trouble": "yellow", "notice": "dim"}


def head_line(body: dict[str, Any]) -> str:
    """Where the run is."""
    ledger = body["ledger"]
    return (
        f"{body['phase']}  step {body['step']}/{body['steps']}  version {body['version']}  lineage {body['lineage']}  "
        f"goodput {body['goodput_tokens_per_second']:,.0f} tokens/s  tickets {ledger['issued']} issued, {ledger['in_flight']} in flight  "
        f"dead letters {body['dead_letters']['kept']}"
    )


def queue_rows(body: dict[str, Any]) -> list[Row]:
    """One row a queue, in the order of the loop."""
    return [
        [
            name,
            str(row["depth"]),
            str(row["leased"]),
            str(row["ready_groups"] or ""),
            _time(row["interval_s"]),
            _time(row["age_s"]),
            _time(row["wait_s"]),
            _time(row["starved_s"]),
            _time(row["blocked_s"]),
            str(row["redeliveries"] or ""),
            str(row["dead_letters"] or ""),
        ]
        for name, row in body["queues"].items()
    ]


REFUSALS_SHOWN = 3


def refusal_lines(body: dict[str, Any]) -> list[str]:
    """Who was refused most, and why."""
    return [f"refused: {row['client']}, {row['reason']}, {row['count']} times" for row in body["refusals"][:REFUSALS_SHOWN]]


def client_rows(body: dict[str, Any]) -> list[Row]:
    """One row a process."""
    return [
        [
            row["name"],
            row["state"],
            " ".join(f"{queue} {count}" for queue, count in row["held"].items()),
            " ".join(f"{queue} {count}" for queue, count in row["windows"].items()),
            _time(row["progress_s"]),
            "" if row["installed"] is None else str(row["installed"]),
            row["waiting"] or row["lost"],
        ]
        for row in body["processes"]
    ]


def _time(value: float | None) -> str:
    if not value:
        return ""
    return f"{1000 * value:.0f} ms" if value < 1 else seconds(value)


def page(body: dict[str, Any]) -> RenderableType:
    """The whole of it, for a terminal."""
    parts: list[RenderableType] = [Text(head_line(body), style="bold"), Text("")]
    parts += [_table(QUEUE_COLUMNS, queue_rows(body), right=range(1, len(QUEUE_COLUMNS))), Text("")]
    clients = _table(CLIENT_COLUMNS, [])
    for row in client_rows(body):
        clients.add_row(row[0], Text(row[1], style=COLOURS.get(row[1], "")), *row[2:])
    parts.append(clients)
    for finding in body["findings"][:3]:
        parts.append(Text(f"{finding['severity']}: {finding['what']}", style=SEVERITY_COLOURS.get(finding["severity"], "")))
    parts += [Text(line, style="dim") for line in refusal_lines(body)]
    return Group(*parts)


def _table(columns: tuple[str, ...], rows: list[Row], right: range = range(0)) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


def lines(body: dict[str, Any]) -> list[str]:
    """The same for a pipe: columns of plain text."""
    found = [head_line(body)]
    for columns, rows in ((QUEUE_COLUMNS, queue_rows(body)), (CLIENT_COLUMNS, client_rows(body))):
        widths = [max(len(column), *(len(row[index]) for row in rows)) if rows else len(column) for index, column in enumerate(columns)]
        for row in (list(columns), *rows):
            found.append("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    return [*found, *(f"{finding['severity']}: {finding['what']}" for finding in body["findings"][:3]), *refusal_lines(body)]
