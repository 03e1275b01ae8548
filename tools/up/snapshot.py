"""The body of the broker's `Status`, typed: what the view knows of a run. Unknown keys are passed over."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from schemas.errors import WireError
from schemas.messages import Status
from schemas.records import Json

ENDING_PHASES = frozenset({"finishing", "closing", "closed", "failed"})
"""The run is about to end: processes go away because they should."""


class ProcessRow(Struct, frozen=True, kw_only=True):
    """One stage process. `since_s`: seconds for which it has been in `state`."""

    name: str
    role: str = ""
    pid: int = 0
    host: str = ""
    slots: tuple[str, ...] = ()
    state: str = "starting"
    since_s: float = 0.0
    waiting: str = ""
    stats: dict[str, float] = {}


class EvaluationRow(Struct, frozen=True, kw_only=True):
    """Held-out problems under one version; `accuracy`, the mean reward of those that are through, and what to call it.

    `scored`: those that are through, `failed` ones included; where all of them failed there is no accuracy.
    """

    version: int
    accuracy: float | None = None
    problems: int = 0
    scored: int = 0
    failed: int = 0
    done: bool = False
    measure: str = "accuracy"


class QueueRow(Struct, frozen=True, kw_only=True):
    """One queue: messages that wait, messages under lease, seconds between arrivals, age of the head."""

    depth: int = 0
    leased: int = 0
    interval_s: float | None = None
    age_s: float | None = None


class LedgerRow(Struct, frozen=True, kw_only=True):
    """Tickets by ending; `dropped` by reason, `failed` by boundary."""

    issued: int = 0
    in_flight: int = 0
    trained: int = 0
    dropped: dict[str, int] = {}
    failed: dict[str, int] = {}
    evaluated: int = 0


class FindingRow(Struct, frozen=True, kw_only=True):
    """What `tidemill doctor` would say, the root cause first."""

    what: str
    severity: str = ""


class Snapshot(Struct, frozen=True, kw_only=True):
    """One moment of a run."""

    phase: str = "starting"
    elapsed_s: float = 0.0
    processes: list[ProcessRow] = []
    step: int = 0
    steps: int = 0
    version: int | None = None
    lineage: int = 0
    metrics: dict[str, float] = {}
    evaluation: list[EvaluationRow] = []
    queues: dict[str, QueueRow] = {}
    ledger: LedgerRow = field(default_factory=LedgerRow)
    goodput_tokens_per_second: float = 0.0
    trained_tokens: int | float = 0
    stalled_s: float = 0.0
    waits: list[str] = []
    findings: list[FindingRow] = []
    failure: dict[str, Json] | None = None

    @property
    def ending(self) -> bool:
        """True once processes may go away by themselves."""
        return self.phase in ENDING_PHASES

    @property
    def accuracy(self) -> EvaluationRow | None:
        """The last evaluation that is through."""
        known = [row for row in self.evaluation if row.done and row.accuracy is not None]
        return known[-1] if known else None


def snapshot_of(status: Status) -> Snapshot:
    """Raises WireError where the broker reports something of another shape."""
    try:
        return msgspec.convert(status.body, Snapshot, strict=False)
    except msgspec.ValidationError as error:
        raise WireError(f"the broker's status cannot be read: {error}") from error
