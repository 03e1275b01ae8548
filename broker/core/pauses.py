"""Pauses: the broker, or its whole machine, stood still for a while. Nobody could be heard in it, so nobody is late because of it.

The driver's clock never jumps (`CLOCK_MONOTONIC`); a pause shows in a tick that comes long after it was due, and the tick says
so. One grace period follows each, as after a restart: for silence, leases, grants and receipts that would end before it is over.
"""

from __future__ import annotations

from broker.core.crank import Crank
from broker.core.settings import GRANT_SECONDS
from broker.core.versions import RECEIPT_SECONDS


def forgive(crank: Crank, late_s: float) -> None:
    """`late_s`: how long after its time the tick came. Half of the shortest lease, the one that heartbeats renew, is a pause."""
    state, grace_s = crank.state, crank.state.settings.grace_s
    if late_s <= state.settings.dead_s / 2:
        return
    crank.note("paused", seconds=late_s)
    until = crank.now + grace_s
    for client in state.clients.values():
        client.last_seen = max(client.last_seen, min(crank.now, until - state.settings.dead_s))
        client.offered_at = max(client.offered_at, until - RECEIPT_SECONDS)
    for lease in state.leases.values():
        lease.deadline = max(lease.deadline, until)
    for grant in state.grants.values():
        if grant.granted_at is not None:
            grant.granted_at = max(grant.granted_at, min(crank.now, until - GRANT_SECONDS))
    if state.restarted_at is not None:  # its grace stood still too
        state.restarted_at = max(state.restarted_at, crank.now)
