"""`tidemill doctor`: asks the broker what is wrong, looks at processes of this machine, and says it, the root cause first."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from broker.diagnosis import Finding, Severity, Wait
from broker.diagnosis.scene import seconds
from schemas.errors import WireError
from schemas.messages import Status, StatusAsked
from stages.host.tail import last_lines
from stages.service.place import this_place
from tools.observe.asking import PATIENCE_S, Asking
from tools.observe.processes import look
from tools.observe.silence import FULL_BYTES, ProcessLook, RunFacts, why_silent
from tools.observe.target import Target
from tools.up.ending import last_word

TAIL_CHARACTERS = 300
BAD = (Severity.FAILED, Severity.STALL, Severity.TROUBLE)


class Report(Struct, frozen=True, kw_only=True):
    """What was found. `body`: the broker's status, None where it did not answer."""

    findings: tuple[Finding, ...]
    graph: tuple[Wait, ...] = ()
    body: dict[str, Any] | None = None

    @property
    def healthy(self) -> bool:
        """Nothing that a person has to do something about."""
        return not any(finding.severity in BAD for finding in self.findings)


def examine(target: Target, patience_s: float = PATIENCE_S) -> Report:
    """Asks, waits up to `patience_s`, and otherwise looks at what the run left behind."""
    body = _status(target, patience_s)
    if body is None:
        return of_silence(target, patience_s)
    try:
        findings = msgspec.convert(body.get("findings", []), tuple[Finding, ...])
        waits = msgspec.convert(body.get("graph", []), tuple[Wait, ...])
    except msgspec.ValidationError as error:
        raise WireError(f"the broker's status cannot be read: {error}; are both of the same version?") from error
    found = tuple(with_process(finding, body, look) for finding in findings)
    return Report(findings=(*full_disk(target.directory, found), *found), graph=waits, body=body)


def full_disk(directory: Path | None, found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The run directory's disk has no room left, which stages meet before the broker does: a checkpoint is larger than a journal entry."""
    if directory is None or any(finding.rule == "disk_full" for finding in found):
        return ()
    room = os.statvfs(directory)
    left = room.f_bavail * room.f_frsize
    if left >= FULL_BYTES:
        return ()
    what = f"the disk is full: {left >> 20} MiB are left where {directory} lies"
    return (Finding(rule="disk_full", severity=Severity.STALL, what=what, advice="free space there: what died of it is started again"),)


def of_silence(target: Target, patience_s: float = PATIENCE_S) -> Report:
    """What is wrong where the broker did not answer."""
    return Report(findings=why_silent(read_facts(target, patience_s)))


def _status(target: Target, patience_s: float) -> dict[str, Any] | None:
    if not target.endpoint:
        return None
    with Asking(target.endpoint, "doctor", target.keys()) as asking:
        answer = asking.ask(StatusAsked(), Status, patience_s)
    return answer[0].body if answer is not None and isinstance(answer[0], Status) else None


def with_process(finding: Finding, body: dict[str, Any], look: Callable[[int, str], ProcessLook]) -> Finding:
    """Adds what the kernel says of the process that a finding is about, where it says something that the broker cannot know."""
    row = next((row for row in body.get("processes", ()) if row["name"] == finding.subject), None)
    if row is None or not row.get("pid") or finding.severity is Severity.NOTICE:
        return finding
    if row.get("place", "") not in ("", this_place()):  # its number is another machine's
        return finding
    state = look(row["pid"], row["name"])
    if state is ProcessLook.STOPPED:
        what = f"{finding.what} [process {row['pid']} is stopped (SIGSTOP)]"
        return msgspec.structs.replace(finding, what=what, advice=f"kill -CONT {row['pid']}")
    if state is ProcessLook.RUNS and row["state"] in ("gone", "suspect"):
        return msgspec.structs.replace(finding, what=f"{finding.what} [process {row['pid']} is alive]")
    return finding


def read_facts(target: Target, patience_s: float) -> RunFacts:
    """What there is to see of a run whose broker does not answer."""
    base = RunFacts(where=target.words, endpoint=target.endpoint, patience_s=patience_s)
    directory = target.directory
    if directory is None:
        return base
    pid = _number(directory / "broker.pid")
    newest = max((file.stat().st_mtime for file in (directory / "journal").glob("*") if file.name != "lock"), default=None)
    room = os.statvfs(directory)
    return msgspec.structs.replace(
        base,
        directory=True,
        pid=pid,
        process=look(pid, "broker"),
        journal_age_s=None if newest is None else max(0.0, time.time() - newest),
        free_bytes=room.f_bavail * room.f_frsize,
        summary=_json(directory / "summary.json"),
        failure=_json(directory / "failure.json"),
        log_tail=last_word(last_lines(directory / "logs" / "broker.log"))[:TAIL_CHARACTERS],
        fixed=_fixed(directory),
    )


def _fixed(directory: Path) -> str:
    broker = (_json(directory / "config.json") or {}).get("broker")
    return str(broker.get("endpoint", "")) if isinstance(broker, dict) else ""


def _number(file: Path) -> int:
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdecimal() else 0


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def lines_of(report: Report) -> list[str]:
    """The report as a person reads it: the root cause alone in the first line."""
    lines = [line for finding in report.findings for line in _finding_lines(finding)]
    if not any(finding.severity in BAD for finding in report.findings):
        lines = [healthy_line(report.body), *lines] if report.body is not None else lines
    if report.graph:
        lines += ["", "who waits for whom:", *graph_lines(report.graph)]
    return lines


def healthy_line(body: dict[str, Any] | None) -> str:
    """Of a run of which nothing is wrong."""
    if body is None:
        return "nothing to see"
    return f"nothing is wrong: {body['phase']}, step {body['step']} of {body['steps']}, something moved {seconds(body['stalled_s'])} ago"


def _finding_lines(finding: Finding) -> list[str]:
    return [f"{finding.severity}: {finding.what}", *([f"    try: {finding.advice}"] if finding.advice else [])]


def graph_lines(waits: Sequence[Wait]) -> list[str]:
    """One line an arrow, in columns."""
    who = max(len(wait.who) for wait in waits)
    whom = max(len(wait.whom) for wait in waits)
    return [f"  {wait.who:<{who}} -> {wait.whom:<{whom}}  {wait.what}, {seconds(wait.since_s)}" for wait in waits]
