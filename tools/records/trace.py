"""A story as a Chrome trace (chrome://tracing, ui.perfetto.dev). Pure.

One process a client, one for the queues, one for the trainer's steps. Leases that overlap lie in lanes below one another, since bars of
one lane may not. Times are microseconds of the broker's clock. Format: Trace Event Format, complete ("X"), instant ("i"), metadata ("M").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tools.records.lives import Fact
from tools.records.story import RELEASES

MICRO = 1e6
STEPS, MARKS = "steps", "marks"


class Lanes:
    """Numbers for processes and lanes, given out as they are needed."""

    def __init__(self) -> None:
        self._ends: dict[str, list[float]] = {}

    def place(self, process: str, begin: float, end: float) -> tuple[int, int]:
        """Process and lane of a bar, such that it overlaps none before it. Bars come in the order of their beginnings."""
        ends = self._ends.setdefault(process, [])
        lane = next((lane for lane, free in enumerate(ends) if free <= begin), len(ends))
        ends[lane : lane + 1] = [end]
        return list(self._ends).index(process) + 1, lane + 1

    def names(self) -> Iterator[dict[str, Any]]:
        """Metadata that names them."""
        for number, process in enumerate(self._ends, 1):
            yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": process}}


def trace_of(facts: Sequence[Fact]) -> dict[str, Any]:
    """The whole file's object."""
    lanes = Lanes()
    bars = sorted([*_leases(facts), *_waits(facts), *_steps(facts)], key=lambda bar: (bar[1], -bar[2]))
    events = [_bar(lanes, *bar) for bar in bars]
    events += [_mark(lanes, fact) for fact in facts if fact.kind in ("ended", "judged", "installed", "install_failed", "refused", "voided")]
    return {"traceEvents": [*lanes.names(), *events], "displayTimeUnit": "ms"}


Bar = tuple[str, float, float, str, dict[str, Any]]
"""Process, begin and end (s), name, arguments."""


def _bar(lanes: Lanes, process: str, begin: float, end: float, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    pid, tid = lanes.place(process, begin, end)
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": begin * MICRO, "dur": (end - begin) * MICRO, "args": arguments}


def _mark(lanes: Lanes, fact: Fact) -> dict[str, Any]:
    pid, tid = lanes.place(MARKS, fact.at, fact.at)
    name = f"{_name(fact)} {fact.kind}"
    return {
        "ph": "i",
        "s": "p",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": fact.at * MICRO,
        "args": {"detail": fact.detail, "entry": fact.number},
    }


def _name(fact: Fact) -> str:
    if fact.ticket is None:
        return next((f"{name} {value}" for name in ("group", "step", "version") if (value := getattr(fact, name)) is not None), "")
    return f"{fact.ticket}" + (f".{fact.attempt}" if fact.attempt is not None else "")


def _leases(facts: Sequence[Fact]) -> Iterator[Bar]:
    """From delivery to release; one that never ended reaches to the story's end."""
    begun = {fact.lease: fact for fact in facts if fact.kind == "leased"}
    last = facts[-1].at if facts else 0.0
    for fact in facts:
        if fact.kind in RELEASES and fact.seconds is not None:
            begun.pop(fact.lease, None)
            yield _lease(fact, fact.at - fact.seconds, fact.at, fact.kind)
    for fact in begun.values():
        yield _lease(fact, fact.at, last, "still held")


def _lease(fact: Fact, begin: float, end: float, became: str) -> Bar:
    turn = f" turn {fact.turn}" if fact.turn is not None else ""
    return fact.client, begin, end, f"{fact.queue} {_name(fact)}{turn}", {"lease": fact.lease, "ended": became, "detail": fact.detail}


def _waits(facts: Sequence[Fact]) -> Iterator[Bar]:
    for fact in facts:
        if fact.kind == "leased" and fact.seconds:
            yield f"queue {fact.queue}", fact.at - fact.seconds, fact.at, f"{_name(fact)} waits", {"lease": fact.lease, "for": fact.client}


def _steps(facts: Sequence[Fact]) -> Iterator[Bar]:
    for fact in facts:
        if fact.kind == "committed" and fact.seconds is not None:
            yield STEPS, fact.at - fact.seconds, fact.at, f"step {fact.step}", {"detail": fact.detail, "tickets": len(fact.tickets)}
