"""Slot grants: how roles that share a slot take turns. Several slots are granted as one gang, first asked first served.
A slot is a host's: two hosts' `cpu:0` are two.

A grant ends by release, by its holder's end, or by its deadline (a fence). Without a host a client has no slots, and is
granted none at once.
"""

from __future__ import annotations

from broker.core.crank import Crank, smoothed
from broker.core.settings import GRANT_SECONDS
from broker.core.state import Client, GrantState, State
from schemas.messages import Fence, Grant, GrantAsked, GrantReleased


def on_asked(crank: Crank, client: Client, asked: GrantAsked) -> None:
    """A client wants its slots. Asking again while a grant is held or asked for gives that same grant."""
    state = crank.state
    mine = next((grant for grant in state.grants.values() if grant.client == client.name), None)
    if mine is None:
        mine = GrantState(id=state.next_grant, client=client.name, slots=asked.slots or client.slots, asked_at=crank.now, host=client.host)
        state.next_grant += 1
        state.grants[mine.id] = mine
    elif mine.granted_at is not None:
        _send(crank, mine)
    serve(crank)


def on_released(crank: Crank, client: Client, released: GrantReleased) -> None:
    """The holder is done; a late release of a fenced grant, or one by somebody else, changes nothing."""
    grant = crank.state.grants.get(released.grant)
    if grant is not None and grant.client == client.name:
        del crank.state.grants[grant.id]
        if grant.granted_at is not None:
            crank.state.grant_s = smoothed(crank.state.grant_s, crank.now - grant.granted_at)
        serve(crank)


def drop_of(crank: Crank, client_name: str) -> None:
    """Ends a client's grants."""
    state = crank.state
    for grant in [g for g in state.grants.values() if g.client == client_name]:
        del state.grants[grant.id]
    serve(crank)


def remind(crank: Crank, client: Client, held: tuple[int, ...]) -> None:
    """The same process said hello again: a grant that got lost on its way is given again."""
    for grant in crank.state.grants.values():
        if grant.client == client.name and grant.granted_at is not None and grant.id not in held:
            _send(crank, grant)


def serve(crank: Crank) -> None:
    """Grants, in the order of asking, all whose slots are free."""
    taken = {slot for grant in crank.state.grants.values() if grant.granted_at is not None for slot in _slots(grant)}
    for grant in crank.state.grants.values():
        if grant.granted_at is not None:
            continue
        if taken.isdisjoint(_slots(grant)):
            grant.granted_at = crank.now
            _send(crank, grant)
        taken.update(_slots(grant))


def _slots(grant: GrantState) -> list[tuple[str, str]]:
    return [(grant.host, slot) for slot in grant.slots]


def _send(crank: Crank, grant: GrantState) -> None:
    crank.send(grant.client, Grant(grant=grant.id, slots=grant.slots, deadline_s=GRANT_SECONDS))


def expire(crank: Crank) -> None:
    """Fences every grant past its deadline."""
    late = [g for g in crank.state.grants.values() if g.granted_at is not None and g.granted_at + GRANT_SECONDS <= crank.now]
    for grant in late:
        del crank.state.grants[grant.id]
        crank.note("grant_fenced", grant=grant.id, client=grant.client)
        crank.send(grant.client, Fence(grant=grant.id))
    if late:
        serve(crank)


def violations(state: State) -> list[str]:
    """Two holders of one slot."""
    holders: dict[tuple[str, str], str] = {}
    wrong = []
    for grant in state.grants.values():
        for slot in _slots(grant) if grant.granted_at is not None else ():
            if slot in holders:
                wrong.append(f"slot {slot[1]} of host {slot[0]!r} is granted to {holders[slot]} and {grant.client}")
            holders[slot] = grant.client
    return wrong
