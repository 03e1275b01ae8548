"""Which records are wanted: the filters of the command line, and their test over columns of rows. Pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from schemas.edges import EDGES, Role
from schemas.errors import ConfigError
from tools.records.tables import FailureRow, Meta, Segment

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "==": operator.eq, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
REWARD = re.compile(r"\s*(<=|>=|!=|==|<|>|=)?\s*(\S+)\s*")


class Selection(Struct, frozen=True, kw_only=True):
    """Filters; a field that is None lets everything through. Times are seconds of the broker's clock."""

    queue: str | None = None
    stage: str | None = None
    group: int | None = None
    session: tuple[int, int | None] | None = None
    step: int | None = None
    version: int | None = None
    reward: tuple[str, float] | None = None
    failed: bool = False
    begin: float | None = None
    end: float | None = None

    @property
    def is_empty(self) -> bool:
        return self == Selection()


def number_of(text: str, what: str) -> int:
    """Raises ConfigError where it is none."""
    if not text.isdecimal():
        raise ConfigError(f"{what} {text!r}: a number is wanted")
    return int(text)


def session_of(text: str) -> tuple[int, int | None]:
    """`7.1`, or `7` for all attempts of ticket 7. Raises ConfigError."""
    ticket, _, attempt = text.partition(".")
    return number_of(ticket, "session"), number_of(attempt, "session's attempt") if attempt else None


def reward_of(text: str) -> tuple[str, float]:
    """`<0.5`, `>=1`, `0`. Raises ConfigError."""
    found = REWARD.fullmatch(text)
    try:
        if found is not None and not math.isnan(value := float(found[2])):
            return found[1] or "=", value
    except ValueError:
        pass
    raise ConfigError(f"reward {text!r}: a comparison is wanted, such as '<0.5', '>=1' or '0'")


def check_times(begin: float | None, end: float | None) -> None:
    """Of `--from` and `--to`. Raises ConfigError for what is no stretch of a run."""
    for option, seconds in (("--from", begin), ("--to", end)):
        if seconds is not None and not 0.0 <= seconds < math.inf:
            raise ConfigError(f"{option} {seconds:g}: seconds since the run's beginning are wanted, 0 or more")
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"--from {begin:g} --to {end:g}: nothing lies between; give the earlier second to --from")


def queues_of_stage(stage: str) -> list[str]:
    """Those that it takes from or puts into. Raises ConfigError for an unknown stage."""
    try:
        role = Role(stage)
    except ValueError:
        raise ConfigError(f"stage {stage!r}: there are {', '.join(role.value for role in Role)}") from None
    return [edge.queue for edge in EDGES.values() if edge.producer is role or role in edge.consumers]


def check_queue(queue: str, known: Sequence[str]) -> None:
    """Raises ConfigError for a queue that neither this version nor the run knows."""
    if queue not in EDGES and queue not in known:
        raise ConfigError(f"queue {queue!r}: there are {', '.join(dict.fromkeys([*EDGES, *known]))}")


def tickets_of_step(meta: Meta, step: int) -> list[int]:
    """Of all plans of that number."""
    return sorted({ticket for row in meta.followed.steps if row.step == step for ticket in row.tickets})


def mask(rows: np.ndarray, wanted: Selection, meta: Meta) -> np.ndarray:
    """True for the rows that are wanted; `failed` apart, which is a view of its own."""
    keep = np.ones(len(rows), bool)
    if wanted.queue is not None:
        keep &= _queue_in(rows, [wanted.queue], meta)
    if wanted.stage is not None:
        keep &= _queue_in(rows, queues_of_stage(wanted.stage), meta)
    if wanted.group is not None:
        keep &= rows["group"] == wanted.group
    if wanted.session is not None:
        ticket, attempt = wanted.session
        keep &= rows["ticket"] == ticket
        if attempt is not None:
            keep &= (rows["attempt"] == attempt) | (rows["attempt"] < 0)
    if wanted.step is not None:
        keep &= np.isin(rows["ticket"], tickets_of_step(meta, wanted.step)) | _is_version(rows, wanted.step, meta)
    if wanted.version is not None:
        keep &= _touches_version(rows, wanted.version)
    if wanted.reward is not None:
        with np.errstate(invalid="ignore"):
            keep &= ~np.isnan(rows["reward"]) & OPERATORS[wanted.reward[0]](rows["reward"], wanted.reward[1])
    return keep & _in_time(rows, wanted)


def may_hold(segment: Segment, wanted: Selection) -> bool:
    """False where a scanned segment holds no such row for certain."""
    if wanted.session is not None and not segment.tickets[0] <= wanted.session[0] <= segment.tickets[1]:
        return False
    if wanted.group is not None and not segment.groups[0] <= wanted.group <= segment.groups[1]:
        return False
    return wanted.queue is None or wanted.queue in segment.totals


def _queue_in(rows: np.ndarray, queues: Sequence[str], meta: Meta) -> np.ndarray:
    return np.isin(rows["queue"], [place for place, name in enumerate(meta.queues) if name in queues])


def _is_version(rows: np.ndarray, step: int, meta: Meta) -> np.ndarray:
    """Step k makes version k."""
    return _queue_in(rows, ("versions", "installs"), meta) & (rows["newest"] == step)


def _touches_version(rows: np.ndarray, version: int) -> np.ndarray:
    """Tokens of it were sampled by that version, or may have been; or it is the version."""
    oldest = np.where(rows["oldest"] >= 0, rows["oldest"], rows["newest"])
    return (rows["newest"] >= version) & (oldest <= version) & (rows["newest"] >= 0)


def _in_time(rows: np.ndarray, wanted: Selection) -> np.ndarray:
    keep = np.ones(len(rows), bool)
    if wanted.begin is not None:
        keep &= rows["at"] >= wanted.begin
    if wanted.end is not None:
        keep &= rows["at"] <= wanted.end
    return keep


def fits(failure: FailureRow, wanted: Selection, meta: Meta) -> bool:
    """Whether the other filters let a failure through."""
    ticket, attempt = wanted.session or (failure.ticket, failure.attempt)
    queues = queues_of_stage(wanted.stage) if wanted.stage is not None else [failure.queue]
    return (
        wanted.queue in (None, failure.queue) and failure.queue in queues and wanted.group in (None, failure.group)
        and ticket == failure.ticket and attempt in (None, failure.attempt)
        and (wanted.step is None or failure.ticket in tickets_of_step(meta, wanted.step))
        and (wanted.begin is None or failure.at >= wanted.begin) and (wanted.end is None or failure.at <= wanted.end)
    )  # fmt: skip
