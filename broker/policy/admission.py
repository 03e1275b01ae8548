"""Admission: how many groups of tickets may enter now.

`async` (AReaL's capacity rule): with R groups a step and versions counted in steps, at most (version + max_lag + 1) * R
groups may have been admitted, where `version` is the oldest that any replica samples with: a group that is trained in
turn is then at most `max_lag` versions old. Counting from the committed step instead would let the time that an install
takes pass for lag that nobody bounded. `sync`: the R groups of the next step, once its version is in use, and no more.
Both stop at the last step, and both stay within the one budget: room is charged here and nowhere else. Pure: numbers
in, a number with its reasons out.
"""

from __future__ import annotations

from msgspec import Struct


class AdmissionView(Struct, frozen=True, kw_only=True, gc=False):
    """What admission decides on. Groups are training groups; `admitted` leaves out those dropped and refilled."""

    schedule: str
    committed_step: int
    newest_in_use: int | None
    """The newest version that a replica has a receipt for; None where no replica has any."""
    oldest_in_use: int | None
    steps: int
    groups_per_step: int
    max_lag: int
    admitted: int
    room_bytes: int
    """What is left of the budget."""
    group_bytes: int
    """Room of one group."""


class Admission(Struct, frozen=True, kw_only=True, gc=False):
    """How many groups to admit, and the bound that held."""

    groups: int
    allowed: int
    reason: str


def admit(view: AdmissionView) -> Admission:
    """Groups to admit now; 0 or more."""
    allowed, reason = _allowed(view)
    last = view.steps * view.groups_per_step
    if last <= allowed:
        allowed, reason = last, "last step"
    groups = max(0, allowed - view.admitted)
    fitting = view.room_bytes // view.group_bytes
    if fitting < groups:
        groups, reason = max(0, fitting), "budget"
    return Admission(groups=groups, allowed=allowed, reason=reason)


def _allowed(view: AdmissionView) -> tuple[int, str]:
    if view.schedule == "sync":
        if view.newest_in_use is None or view.newest_in_use < view.committed_step:
            return view.committed_step * view.groups_per_step, "version not in use"
        return (view.committed_step + 1) * view.groups_per_step, "round"
    if view.oldest_in_use is None:
        return view.committed_step * view.groups_per_step, "version not in use"
    return (view.oldest_in_use + view.max_lag + 1) * view.groups_per_step, "max_lag"
