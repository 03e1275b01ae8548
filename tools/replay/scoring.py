"""One-step scores: what a choice costs and brings at the moment when it is made, as far as the recorded state says. Pure.

No prediction: the alternative's own future has no part in them.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.policy.admission import Admission, AdmissionView
from broker.policy.grouping import GroupView, Verdict
from broker.policy.placement import Placement, ReplicaView

Scores = dict[str, float | None]


def of_placement(choice: Placement | None, home: str | None, replicas: Sequence[ReplicaView]) -> Scores:
    """`in_flight`: turns that the replica has then; `waits`: 1 where the turn stays in the queue. `kept_kv`: share of the session's KV."""
    if choice is None:
        return {"waits": 1.0, "in_flight": None, "kept_kv": None}
    there = next((replica.in_flight for replica in replicas if replica.name == choice.replica), 0)
    kept = None if home is None else float(choice.replica == home)
    return {"waits": 0.0, "in_flight": float(there + 1), "kept_kv": kept}


def of_admission(choice: Admission, view: AdmissionView) -> Scores:
    """`lag`: versions by which the last admitted group is behind when it is trained in turn; `room_bytes`: what is left of the budget."""
    admitted = view.admitted + choice.groups
    step = max(1, -(-admitted // view.groups_per_step))
    lag = None if view.oldest_in_use is None else float(max(0, step - 1 - view.oldest_in_use))
    return {"admitted": float(admitted), "lag": lag, "room_bytes": float(view.room_bytes - choice.groups * view.group_bytes)}


def of_grouping(choice: Verdict, view: GroupView) -> Scores:
    """`members`: those that go on to the trainer; `spread`: of their rewards, without which they have no advantage; `refills`: used up."""
    keeps = choice is Verdict.KEEP
    spread = max(view.rewards) - min(view.rewards) if view.rewards else 0.0
    again = float(view.refills + (choice is Verdict.DROP_AND_REFILL))
    return {"members": float(len(view.rewards)) if keeps else 0.0, "spread": spread if keeps else 0.0, "refills": again}
