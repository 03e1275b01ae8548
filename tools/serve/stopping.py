"""`tidemill stop RUN`: ends a run before its steps are done; its ledger closes, its stages go home."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from msgspec import Struct

from schemas.errors import ConfigError
from schemas.messages import Status, StatusAsked, StopAsked
from tools.observe.asking import Answer, Asking
from tools.observe.target import find
from tools.up.directory import SUMMARY
from tools.up.endpoint import reachable
from tools.up.facts import ledger_line
from tools.up.snapshot import LedgerRow, Snapshot, snapshot_of

CLOSED_BY_S = 15.0
"""More than the broker grants to the step in hand and then to the stages."""
LOOK_S = 0.3


class _Summary(Struct, frozen=True):
    ledger: LedgerRow | None = None


def stop(run: str) -> int:
    """0 once the run has ended; 1 where it takes too long. Raises ConfigError where no broker answers."""
    target = find(run)
    endpoint = reachable(target.endpoint)
    if not endpoint:
        raise ConfigError(f"{target.words}: no broker has been here yet")
    with Asking(endpoint, "stop", target.keys()) as asking:
        before = asking.ask(StatusAsked(), Status)
        if before is None:
            raise ConfigError(f"{target.words}: no broker answers at {endpoint}; is the run at work? See tidemill doctor {run}")
        told = asking.ask(StopAsked(reason="stopped by a person"), Status, LOOK_S)
        last = _watch_it_close(asking, _seen(told) or _seen(before) or Snapshot())
    if last is None:
        print(f"the broker still answers after {CLOSED_BY_S:g} s; see tidemill doctor {run}")
        return 1
    print(f"the run is stopped: {ledger_line(_closed(target.directory) or last.ledger)}")
    return 0


def _closed(directory: Path | None) -> LedgerRow | None:
    """The ledger as the broker wrote it at the end; None where that is not on this machine."""
    file = directory / SUMMARY if directory is not None else None
    if file is None or not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Summary, strict=False).ledger
    except msgspec.MsgspecError:  # it is being written, or another version's
        return None


def _seen(answer: Answer | None) -> Snapshot | None:
    return snapshot_of(answer[0]) if answer is not None and isinstance(answer[0], Status) else None


def _watch_it_close(asking: Asking, last: Snapshot) -> Snapshot | None:
    """The last that was seen of it, `last` at first; None where it is still there."""
    deadline = time.monotonic() + CLOSED_BY_S
    while time.monotonic() < deadline:
        answer = asking.ask(StatusAsked(), Status, LOOK_S)
        if answer is None:
            return last
        last = _seen(answer) or last
        time.sleep(LOOK_S)
    return None
