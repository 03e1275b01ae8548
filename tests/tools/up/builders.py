"""Snapshots as a broker would report them."""

from __future__ import annotations

from typing import Any

from schemas.messages import Status
from tools.up.snapshot import ProcessRow, Snapshot, snapshot_of


def a_process(name: str = "env-0", state: str = "ready", **fields: Any) -> ProcessRow:
    role = fields.pop("role", name.rpartition("-")[0])
    return ProcessRow(name=name, role=role, pid=fields.pop("pid", 41), state=state, **fields)


def a_body(**fields: Any) -> dict[str, Any]:
    """The body of a status in the middle of a run."""
    body: dict[str, Any] = {
        "phase": "training",
        "elapsed_s": 12.0,
        "step": 3,
        "steps": 24,
        "version": 3,
        "metrics": {"reward/mean": 0.5, "tool_calls/mean": 1.25, "lag/mean": 0.75},
        "evaluation": [{"version": 0, "accuracy": 0.25, "problems": 500, "scored": 500, "done": True}],
        "queues": {"turns": {"depth": 7, "leased": 2, "interval_s": 0.1, "age_s": 0.0}},
        "ledger": {"issued": 90, "in_flight": 20, "trained": 64, "dropped": {"no_spread": 6}, "failed": {}},
        "goodput_tokens_per_second": 1234.5,
    }
    return {**body, **fields}


def a_snapshot(**fields: Any) -> Snapshot:
    processes = fields.pop("processes", [])
    snapshot = snapshot_of(Status(body=a_body(**fields)))
    return Snapshot(**{**{name: getattr(snapshot, name) for name in snapshot.__struct_fields__}, "processes": processes})
