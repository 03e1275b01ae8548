"""Policies by name: what may be chosen for each decision, the baseline first, and the set that a core decides with.

| decision | names |
|---|---|
| `placement` | `sticky` (what runs), `least_in_flight` |
| `admission` | `capacity` (what runs); its constants are the schedule's |
| `grouping` | `drop_uniform` (what runs, where the schedule asks for it), `keep_all` |

Pure. The live broker decides with `DEFAULT`; `tidemill whatif` asks another set at the recorded states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from broker.policy.admission import Admission, AdmissionView, admit
from broker.policy.grouping import GroupView, Verdict, judge, keep_all
from broker.policy.placement import Placement, ReplicaView, least_in_flight, place

Place = Callable[[str | None, int | None, Iterable[ReplicaView]], Placement | None]
Admit = Callable[[AdmissionView], Admission]
Judge = Callable[[GroupView], Verdict]


class Policies(Struct, frozen=True, kw_only=True):
    """One function a decision."""

    place: Place = place
    admit: Admit = admit
    judge: Judge = judge


DEFAULT = Policies()

PLACEMENT: dict[str, Place] = {"sticky": place, "least_in_flight": least_in_flight}
ADMISSION: dict[str, Admit] = {"capacity": admit}
GROUPING: dict[str, Judge] = {"drop_uniform": judge, "keep_all": keep_all}

NAMES: dict[str, tuple[str, ...]] = {"placement": tuple(PLACEMENT), "admission": tuple(ADMISSION), "grouping": tuple(GROUPING)}
"""What can be chosen, by decision."""


def choose(names: dict[str, str]) -> Policies:
    """`DEFAULT` with these in place of its own, such as {"placement": "least_in_flight"}. KeyError for what is not in `NAMES`."""
    return Policies(
        place=PLACEMENT[names.get("placement", "sticky")],
        admit=ADMISSION[names.get("admission", "capacity")],
        judge=GROUPING[names.get("grouping", "drop_uniform")],
    )
