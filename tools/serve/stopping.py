"""`tidemill stop RUN`: ends a run before its steps are done; its ledger closes, its stages go home."""

from __future__ import annotations

import time

from schemas.errors import ConfigError
from schemas.messages import Status, StatusAsked, StopAsked
from tools.observe.asking import Asking
from tools.observe.target import find
from tools.up.endpoint import reachable
from tools.up.facts import ledger_line
from tools.up.snapshot import Snapshot, snapshot_of

CLOSED_BY_S = 15.0
"""More than the broker grants to the step in hand and then to the stages."""
LOOK_S = 0.3


def stop(run: str) -> int:
    """0 once the run has ended; 1 where it takes too long. Raises ConfigError where no broker answers."""
    target = find(run)
    endpoint = reachable(target.endpoint)
    if not endpoint:
        raise ConfigError(f"{target.words}: no broker has been here yet")
    with Asking(endpoint, "stop", target.keys()) as asking:
        if asking.ask(StatusAsked(), Status) is None:
            raise ConfigError(f"{target.words}: no broker answers at {endpoint}; is the run at work? See tidemill doctor {run}")
        asking.ask(StopAsked(reason="stopped by a person"), Status, LOOK_S)
        last = _watch_it_close(asking)
    if last is None:
        print(f"the broker still answers after {CLOSED_BY_S:g} s; see tidemill doctor {run}")
        return 1
    print(f"the run is stopped: {ledger_line(last.ledger)}")
    return 0


def _watch_it_close(asking: Asking) -> Snapshot | None:
    """The last that was seen of it; None where it is still there."""
    last, deadline = Snapshot(), time.monotonic() + CLOSED_BY_S
    while time.monotonic() < deadline:
        answer = asking.ask(StatusAsked(), Status, LOOK_S)
        if answer is None:
            return last
        if isinstance(answer[0], Status):
            last = snapshot_of(answer[0])
        time.sleep(LOOK_S)
    return None
