"""The commands `top`, `doctor` and `dead`: ask, draw, say with the exit code how it is.

Exit codes: 0 nothing is wrong; 1 something is, or nobody answers; 2 bad input.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.live import Live

from schemas.codec import Frame
from schemas.messages import BrokerMessage, ClientMessage, DeadAsked, DeadLetters, DeadRetried, DeadRetry, Status, StatusAsked
from tools.observe import doctor, letters, past, top
from tools.observe.asking import PATIENCE_S, Asking
from tools.observe.silence import why_no_retry
from tools.observe.target import Target, find

EVERY_S = 1.0
"""Queues and ages are read by people: once a second is as fast as they look."""
BAD = 1


def run_top(text: str, *, once: bool, as_json: bool) -> int:
    """Shows the run until it is gone or Ctrl-C; `once`: a single time."""
    target = find(text)
    console = Console(emoji=False, markup=False)
    if once or as_json or not console.is_terminal:
        return _top_lines(target, once=once, as_json=as_json)
    with Asking(_endpoint(target), "top", target.keys()) as asking, Live(console=console, auto_refresh=False, screen=True) as live:
        while (body := _body(asking)) is not None:
            live.update(top.page(body), refresh=True)
            time.sleep(EVERY_S)
    return _nobody(target)


def _top_lines(target: Target, *, once: bool, as_json: bool) -> int:
    with Asking(_endpoint(target), "top", target.keys()) as asking:
        while (body := _body(asking)) is not None:
            print(json.dumps(body) if as_json else "\n".join(top.lines(body)), flush=True)
            if once:
                return 0
            time.sleep(EVERY_S)
    return _nobody(target)


def _endpoint(target: Target) -> str:
    return target.endpoint or "ipc:///nowhere/broker"  # a run that was never started: nobody answers there


def _body(asking: Asking) -> dict[str, Any] | None:
    answer = asking.ask(StatusAsked(), Status)
    return answer[0].body if answer is not None and isinstance(answer[0], Status) else None


def _nobody(target: Target) -> int:
    for line in doctor.lines_of(doctor.of_silence(target)):
        print(line, file=sys.stderr)
    return BAD


def run_doctor(text: str, *, as_json: bool) -> int:
    """Prints what is wrong, the root cause first."""
    report = doctor.examine(find(text))
    if as_json:
        print(json.dumps({"healthy": report.healthy, "findings": to_builtins(report.findings), "graph": to_builtins(report.graph)}))
    else:
        print("\n".join(doctor.lines_of(report)))
    return 0 if report.healthy else BAD


def run_dead_list(text: str, *, as_json: bool) -> int:
    """Prints all dead letters of a run."""
    target = find(text)
    answer = _dead(target, DeadAsked())
    if answer is None:
        return _nobody(target)
    print(json.dumps(list(answer[0].letters)) if as_json else "\n".join(letters.list_lines(answer[0])))
    return 0


def run_dead_show(letter: int, text: str) -> int:
    """Prints one dead letter and its record."""
    target = find(text)
    answer = _dead(target, DeadAsked(id=letter))
    if answer is None:
        return _nobody(target)
    if not answer[0].letters:
        print(f"tidemill: there is no dead letter {letter}; `tidemill dead list` shows those there are", file=sys.stderr)
        return BAD
    print("\n".join(letters.show_lines(dict(answer[0].letters[0]), answer[1])))
    return 0


def _dead(target: Target, question: DeadAsked) -> tuple[DeadLetters, list[Frame]] | None:
    """The broker's answer; where nobody answers and the run's directory is known, what its journal says."""
    answer = _ask(target, question, DeadLetters)
    if answer is not None and isinstance(answer[0], DeadLetters):
        return answer[0], answer[1]
    if target.directory is None or not (target.directory / "journal").is_dir():
        return None
    found = past.dead_of(target.directory, question)
    print("tidemill: the broker does not answer; this is what its journal says up to its last entry", file=sys.stderr)
    return found


def run_dead_retry(letter: int, text: str) -> int:
    """Has the task of a dead letter tried again, and prints what happens."""
    target = find(text)
    answer = _ask(target, DeadRetry(id=letter), DeadRetried)
    if answer is None or not isinstance(answer[0], DeadRetried):
        if target.directory is not None:
            print(f"tidemill: {why_no_retry(doctor.read_facts(target, PATIENCE_S))}", file=sys.stderr)
        return _nobody(target)
    print(answer[0].detail, file=sys.stdout if answer[0].done else sys.stderr)
    return 0 if answer[0].done else BAD


def _ask(target: Target, question: ClientMessage, kind: type[BrokerMessage]) -> Any:
    with Asking(_endpoint(target), "dead", target.keys()) as asking:
        return asking.ask(question, kind)
