"""What is wrong where the broker itself does not answer: from the run directory and the kernel's word on its process. Pure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from broker.diagnosis import Finding, Severity
from broker.diagnosis.scene import seconds

FULL_BYTES = 16 << 20
"""A disk with less than this left is taken for full."""


class ProcessLook(StrEnum):
    """What a process does, as the kernel sees it."""

    RUNS = "runs"
    STOPPED = "stopped"
    GONE = "gone"
    UNKNOWN = "unknown"
    """Its pid is not known, or it is not on this machine."""


class RunFacts(Struct, frozen=True, kw_only=True):
    """What a run directory says. Ages in seconds, None where there is nothing to tell from."""

    where: str
    endpoint: str
    patience_s: float
    directory: bool = False
    pid: int = 0
    process: ProcessLook = ProcessLook.UNKNOWN
    journal_age_s: float | None = None
    free_bytes: int | None = None
    summary: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    log_tail: str = ""
    """The last line of the broker's log that tells of something wrong."""
    fixed: str = ""
    """The address that the run's configuration gives its broker: always with `tidemill serve`, seldom with `tidemill up`."""


def why_silent(facts: RunFacts) -> tuple[Finding, ...]:
    """Findings about a broker that did not answer, the likeliest first."""
    if facts.failure is not None:
        reason = f"{facts.failure.get('stage')}: {facts.failure.get('reason')}"
        return (_finding("run_failed", Severity.FAILED, f"the run has failed: {reason}", str(facts.failure.get("advice", ""))),)
    if facts.summary is not None:
        ended = facts.summary.get("ended", "done")
        return (
            _finding(
                "run_ended", Severity.NOTICE, f"the run has ended ({ended}) after step {facts.summary.get('steps')}: no broker is at work"
            ),
        )
    found = [_process(facts)]
    if facts.free_bytes is not None and facts.free_bytes < FULL_BYTES:
        full = f"the disk is full: {facts.free_bytes >> 20} MiB are left where {facts.where} lies"
        found.insert(0, _finding("disk_full", Severity.STALL, f"{full}, and {found[0].what}", "free space there, then resume the run"))
    return tuple(found)


def _process(facts: RunFacts) -> Finding:
    written = "" if facts.journal_age_s is None else f"; its journal was last written {seconds(facts.journal_age_s)} ago"
    at = f" at {facts.endpoint}" if facts.endpoint else ""
    match facts.process:
        case ProcessLook.STOPPED:
            what = f"the broker (process {facts.pid}) is frozen: it is stopped (SIGSTOP) and does not answer{at}{written}"
            return _finding("broker_frozen", Severity.STALL, what, f"kill -CONT {facts.pid}", facts.journal_age_s)
        case ProcessLook.RUNS:
            what = f"the broker (process {facts.pid}) runs and does not answer{at} within {seconds(facts.patience_s)}{written}"
            return _finding("broker_hung", Severity.STALL, what, "see logs/broker.log: a disk that hangs?", facts.journal_age_s)
        case ProcessLook.GONE:
            said = f"; its last word: {facts.log_tail}" if facts.log_tail else ""
            what = f"the broker (process {facts.pid}) is dead: nobody answers{at}{written}{said}"
            return _finding("broker_dead", Severity.STALL, what, how_to_go_on(facts), facts.journal_age_s)
        case _:
            what = f"the broker does not answer{at} within {seconds(facts.patience_s)}{written}"
            hint = "is it the right endpoint, and does its machine run?" if not facts.directory else "was the run ever started?"
            return _finding("broker_silent", Severity.STALL, what, hint, facts.journal_age_s)


def how_to_go_on(facts: RunFacts) -> str:
    """By which command a run without a broker gets one again. `serve` has to be told to go on with one that failed or was stopped."""
    name = Path(facts.where).name
    by_up = f"the same tidemill up again, each --set as before, with --name {name} --resume"
    if not facts.fixed:
        return f"go on by {by_up}"
    ended = " --resume" if facts.summary is not None or facts.failure is not None else ""
    by_serve = f"the same tidemill serve again (--endpoint {facts.fixed} --name {name}{ended})"
    return f"go on by the command that began it: {by_serve}, or {by_up}"


def why_no_retry(facts: RunFacts) -> str:
    """What there is to do about a dead letter of a run whose broker does not answer."""
    if facts.summary is not None and facts.summary.get("ended", "done") == "done":
        return "the run has reached its steps: what failed in it is not tried again"
    if facts.process in (ProcessLook.STOPPED, ProcessLook.RUNS):
        return "only a broker can try it again, and this run's does not answer"
    return f"only a broker can try it again; {how_to_go_on(facts)}"


def _finding(rule: str, severity: Severity, what: str, advice: str = "", since_s: float | None = None) -> Finding:
    return Finding(rule=rule, severity=severity, what=what, advice=advice, since_s=since_s or 0.0, subject="broker")
