"""Placement: which replica gets which turn. Baseline: sticky, else least in flight; beside it `least_in_flight` alone, which pays a prefill
for an even load.

A session's next turn goes to the replica that holds its KV while that one has room; otherwise, and for a first turn, to
the replica with the fewest turns in flight, by name where equal. Pure: candidates in, one of them (or none) out.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class ReplicaView(Struct, frozen=True, kw_only=True, gc=False):
    """A replica as the policy sees it."""

    name: str
    in_flight: int
    window: int
    installed: int


class Placement(Struct, frozen=True, gc=False):
    """The chosen replica, and whether it holds the session's KV."""

    replica: str
    sticky: bool


def place(home: str | None, pinned: int | None, replicas: Iterable[ReplicaView]) -> Placement | None:
    """The replica for a turn whose session lives on `home` and which must be sampled by version `pinned` (None: any). None: wait."""
    fitting = [r for r in replicas if r.in_flight < r.window and (pinned is None or r.installed == pinned)]
    if any(replica.name == home for replica in fitting):
        return Placement(str(home), True)
    if not fitting:
        return None
    return Placement(min(fitting, key=lambda r: (r.in_flight, r.name)).name, False)


def least_in_flight(_: str | None, pinned: int | None, replicas: Iterable[ReplicaView]) -> Placement | None:
    """As `place`, but blind to where the session's KV is."""
    return place(None, pinned, replicas)
