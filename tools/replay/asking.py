"""Two sets of policies at the same decisions: the recorded one decides, the other is only asked. Pure.

At each decision the other set sees the recorded state, with its own constants where the view holds any: a one-step comparison, which the
alternative's own future has no part in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from broker.core.settings import Settings
from broker.policy.admission import Admission, AdmissionView
from broker.policy.grouping import GroupView, Verdict
from broker.policy.placement import Placement, ReplicaView
from broker.policy.registry import DEFAULT, Policies

DECIDES = {"placement": "replica", "admission": "groups", "grouping": "verdict"}
"""What of a decision is carried out."""


class Decision(Struct, frozen=True):
    """One decision: on what it was made, what was decided, and what the other set says."""

    kind: str
    view: dict[str, Any]
    recorded: dict[str, Any]
    other: dict[str, Any]

    @property
    def differs(self) -> bool:
        """In what is done; reasons and bounds that lead to the same are no difference."""
        return self.recorded[DECIDES[self.kind]] != self.other[DECIDES[self.kind]]


class Asking:
    """`policies` are to be handed to the core; `decisions` gathers what was decided since it was last emptied."""

    def __init__(self, other: Policies, constants: Settings | None) -> None:
        """`constants`: the settings that the other set decides under; None for the recorded ones."""
        self._other = other
        self._constants = constants
        self.decisions: list[Decision] = []
        self.policies = Policies(place=self._place, admit=self._admit, judge=self._judge)

    def _place(self, home: str | None, pinned: int | None, replicas: Iterable[ReplicaView]) -> Placement | None:
        seen = list(replicas)
        decided = DEFAULT.place(home, pinned, seen)
        view = {"home": home, "pinned": pinned, "replicas": {each.name: f"{each.in_flight} of {each.window} in flight" for each in seen}}
        self._note("placement", view, _placed(decided), _placed(self._other.place(home, pinned, seen)))
        return decided

    def _admit(self, view: AdmissionView) -> Admission:
        decided = DEFAULT.admit(view)
        self._note("admission", asdict(view), asdict(decided), asdict(self._other.admit(self._admission(view))))
        return decided

    def _admission(self, view: AdmissionView) -> AdmissionView:
        new = self._constants
        if new is None:
            return view
        return replace(view, schedule=new.schedule, steps=new.steps, groups_per_step=new.groups_per_step, max_lag=new.max_lag)

    def _judge(self, view: GroupView) -> Verdict:
        decided = DEFAULT.judge(view)
        self._note("grouping", asdict(view), {"verdict": decided.value}, {"verdict": self._other.judge(self._group(view)).value})
        return decided

    def _group(self, view: GroupView) -> GroupView:
        new = self._constants
        if new is None:
            return view
        refills = int(new.max_refills * new.groups_per_step)
        return replace(view, min_members=new.min_members, drop_uniform=new.drop_uniform, max_refills=refills)

    def _note(self, kind: str, view: dict[str, Any], recorded: dict[str, Any], other: dict[str, Any]) -> None:
        self.decisions.append(Decision(kind, view, recorded, other))


def _placed(placement: Placement | None) -> dict[str, Any]:
    return {"replica": None} if placement is None else {"replica": placement.replica, "keeps_kv": placement.sticky}
