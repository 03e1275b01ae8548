"""Records whose frames are gone: whatever they are and whenever it is found, the state holds together and says what became of them."""

from __future__ import annotations

import msgspec
import pytest

from broker.core.actions import Note
from broker.core.events import Damaged, Restarted
from broker.core.invariants import violations
from broker.core.state import Stand, State
from broker.core.step import step
from tests.broker.journal.lives import some_run, truth


def after(count: int) -> State:
    """The state of a broker that comes back after `count` events."""
    state: State = msgspec.msgpack.decode(truth(count)[0], type=State)
    step(state, Restarted(), 1e6)
    return state


@pytest.mark.parametrize("count", range(5, len(some_run()), 7))
def test_a_damaged_record_ends_or_renews_what_needs_it_and_nothing_else(count: int) -> None:
    for message in truth(count)[1]:
        state = after(count)
        tickets = {ticket.id: ticket.stand for ticket in state.tickets.values()}
        assert not any(state.ledger.failed.values())
        actions = step(state, Damaged(messages=(message,)), 1e6)
        assert violations(state) == [], message
        assert next(action.kind for action in actions if isinstance(action, Note)) == "records_damaged"
        if state.failure is not None:
            assert "damaged on disk" in state.failure.reason
        else:
            needing = [ticket for ticket, stand in tickets.items() if stand_of(state, ticket) is not stand]
            assert len(needing) <= 1 or any(state.ledger.dropped.values()), "the group of a lost member may break, no other"


def stand_of(state: State, ticket: int) -> Stand | None:
    return state.tickets[ticket].stand if ticket in state.tickets else None


def test_a_session_whose_turn_is_damaged_begins_a_new_attempt() -> None:
    count = next(n for n in range(5, len(some_run())) if after(n).sessions)
    state = after(count)
    session = next(iter(state.sessions.values()))
    step(state, Damaged(messages=(session.frames[0],)), 1e6)
    assert session.ticket not in state.sessions
    assert state.tickets[session.ticket].stand is Stand.QUEUED
    assert violations(state) == []
