"""The numbers of a run that people look at, as words: pure, used by the page and by the lines."""

from __future__ import annotations

from tools.up.snapshot import EvaluationRow, LedgerRow, ProcessRow, Snapshot

METRICS = (
    ("reward", "reward/mean", "{:.3f}"),
    ("tool calls an episode", "tool_calls/mean", "{:.2f}"),
    ("lag", "lag/mean", "{:.2f}"),
)
"""Of the last step: what it is called, its metric, its form."""
EMPTY = "0+0"
"""A queue in which nothing waits and nothing is worked on."""


def facts(snapshot: Snapshot, left_s: float | None) -> list[tuple[str, str]]:
    """Names and values, the most important first; what is not known yet is left out."""
    known = [(label, form.format(snapshot.metrics[key])) for label, key, form in METRICS if key in snapshot.metrics]
    last = snapshot.accuracy
    if last is not None and last.accuracy is not None:
        known.append((last.measure, f"{last.accuracy:.3f} (version {last.version})"))
    if snapshot.goodput_tokens_per_second:
        known.append(("goodput", f"{snapshot.goodput_tokens_per_second:,.0f} trained tokens/s"))
    if left_s is not None:
        known.append(("left", clock(left_s)))
    return known


def result_line(row: EvaluationRow) -> str:
    """What an evaluation that is through came to; no number where there is nothing that it could be of."""
    if row.accuracy is None:
        return f"version {row.version}: not measured: {all_failed(row.problems)}"
    failures = f", {row.failed} of which failed" if row.failed else ""
    return f"version {row.version}: {row.measure} {row.accuracy:.3f} on {row.problems} held-out problems{failures}"


def all_failed(problems: int) -> str:
    """Why an evaluation has no result."""
    return f"all {problems} held-out problems failed" if problems != 1 else "the one held-out problem failed"


def queue_depths(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Per queue, how many messages wait and how many are being worked on."""
    return [(name, f"{row.depth}+{row.leased}") for name, row in snapshot.queues.items()]


def ledger_line(row: LedgerRow) -> str:
    """Tickets by ending."""
    parts = [f"{row.issued} issued", f"{row.in_flight} in flight", f"{row.trained} trained"]
    parts += [f"{count} dropped ({reason})" for reason, count in row.dropped.items() if count]
    parts += [f"{count} failed ({boundary})" for boundary, count in row.failed.items() if count]
    parts += [f"{row.evaluated} evaluated"] if row.evaluated else []
    return " · ".join(parts)


def evaluation_under_way(snapshot: Snapshot) -> EvaluationRow | None:
    """The evaluation that is being played, if any."""
    unfinished = [row for row in snapshot.evaluation if not row.done]
    return unfinished[-1] if unfinished else None


def progress_line(row: EvaluationRow) -> str:
    """How far an evaluation is."""
    return f"evaluating version {row.version}: {row.scored} of {row.problems} problems"


def clock(seconds: float) -> str:
    """Minutes and seconds. Example: `clock(75.2) == "1:15"`."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


def stall_lines(snapshot: Snapshot, stall_notice_s: float) -> list[str]:
    """After `stall_notice_s` without progress: the root cause, and who waits for whom, on what, since when."""
    if snapshot.stalled_s < stall_notice_s or snapshot.phase in ("closed", "failed"):
        return []
    waits = snapshot.waits or ["no process says what it waits for"]
    cause = [f"  cause: {snapshot.findings[0].what}"] if snapshot.findings else []
    return [f"no progress for {snapshot.stalled_s:.0f} s:", *cause, *(f"  {wait}" for wait in waits)]


def where(row: ProcessRow, snapshot: Snapshot) -> str:
    """The slots of a process, with its host where the run has several; empty where it takes none on the only one."""
    several = sum(other.role == "host" for other in snapshot.processes) > 1
    slots = " ".join(row.slots)
    return f"{row.host}: {slots or 'all cores'}" if several and row.host else slots
