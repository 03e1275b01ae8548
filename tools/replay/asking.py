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
from tools.replay.scoring import Scores, of_admission, of_grouping, of_placement

DECIDES = {"placement": "replica", "admission": "groups", "grouping": "verdict"}
"""What of a decision is carried out."""


class Decision(Struct, frozen=True):
    """One decision: on what it was made, what was decided, and what the other set says."""

    kind: str
    view: dict[str, Any]
    recorded: dict[str, Any]
    other: dict[str, Any]
    recorded_scores: Scores
    other_scores: Scores
    """One step's, at the recorded state (`tools/replay/scoring.py`)."""

    @property
    def differs(self) -> bool:
        """In what is done; reasons and bounds that lead to the same are no difference."""
        return self.recorded[DECIDES[self.kind]] != self.other[DECIDES[self.kind]]


class Constants(Struct, frozen=True):
    """What the other set decides under; `window`: turns that a replica may hold, None for the recorded ones."""

    recorded: Settings
    other: Settings
    window: int | None = None


class Asking:
    """`policies` are to be handed to the core; `decisions` gathers what was decided since it was last emptied."""

    def __init__(self, other: Policies, constants: Constants | None) -> None:
        """`constants`: None for the recorded ones."""
        self._other = other
        self._constants = constants
        self.decisions: list[Decision] = []
        self.policies = Policies(place=self._place, admit=self._admit, judge=self._judge)

    def _place(self, home: str | None, pinned: int | None, replicas: Iterable[ReplicaView]) -> Placement | None:
        seen = list(replicas)
        decided = DEFAULT.place(home, pinned, seen)
        view = {"home": home, "pinned": pinned, "replicas": {each.name: f"{each.in_flight} of {each.window} in flight" for each in seen}}
        other = self._other.place(home, pinned, self._replicas(seen))
        scores = of_placement(decided, home, seen), of_placement(other, home, seen)
        self.decisions.append(Decision("placement", view, _placed(decided), _placed(other), *scores))
        return decided

    def _replicas(self, seen: list[ReplicaView]) -> list[ReplicaView]:
        window = self._constants.window if self._constants is not None else None
        return seen if window is None else [replace(each, window=window) for each in seen]

    def _admit(self, view: AdmissionView) -> Admission:
        decided = DEFAULT.admit(view)
        theirs = self._admission(view)
        other = self._other.admit(theirs)
        scores = of_admission(decided, view), of_admission(other, theirs)
        self.decisions.append(Decision("admission", asdict(view), asdict(decided), asdict(other), *scores))
        return decided

    def _admission(self, view: AdmissionView) -> AdmissionView:
        if self._constants is None:
            return view
        old, new = self._constants.recorded, self._constants.other
        return replace(
            view, schedule=new.schedule, steps=new.steps, groups_per_step=new.groups_per_step, max_lag=new.max_lag,
            room_bytes=view.room_bytes + new.budget_bytes - old.budget_bytes, group_bytes=view.group_bytes * new.members // old.members,
        )  # fmt: skip

    def _judge(self, view: GroupView) -> Verdict:
        decided = DEFAULT.judge(view)
        theirs = self._group(view)
        other = self._other.judge(theirs)
        scores = of_grouping(decided, view), of_grouping(other, theirs)
        self.decisions.append(Decision("grouping", asdict(view), {"verdict": decided.value}, {"verdict": other.value}, *scores))
        return decided

    def _group(self, view: GroupView) -> GroupView:
        if self._constants is None:
            return view
        new = self._constants.other
        refills = int(new.max_refills * new.groups_per_step)
        return replace(view, min_members=new.min_members, drop_uniform=new.drop_uniform, max_refills=refills)


def _placed(placement: Placement | None) -> dict[str, Any]:
    return {"replica": None} if placement is None else {"replica": placement.replica, "keeps_kv": placement.sticky}
