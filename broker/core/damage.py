"""What becomes of records whose frames were damaged on disk: what can be done again is done again, the rest ends
under its name.

| the damaged record | becomes |
|---|---|
| a turn or action of a live session | a new attempt of its ticket |
| an episode, scored or sample of a ticket that no plan holds | its ticket ends `failed(journal)` |
| of a step plan, or a version or install | the run fails: it would train on something else than it recorded |
"""

from __future__ import annotations

from broker.core import leases, sessions
from broker.core.crank import Crank
from broker.core.state import Session, Stand

PLANNED = frozenset({Stand.PLANNED, Stand.TRAINED})


def give_up(crank: Crank, messages: tuple[int, ...]) -> None:
    """Ends or renews everything that needs one of `messages`."""
    crank.note("records_damaged", messages=len(messages))
    for message in messages:
        _give_up(crank, message)


def _give_up(crank: Crank, message: int) -> None:
    state = crank.state
    session = _session_of(crank, message)
    if session is not None:
        sessions.new_attempt(crank, state.tickets[session.ticket])
        return
    ticket = next((ticket for ticket in state.tickets.values() if ticket.record == message), None)
    if ticket is not None and ticket.stand not in PLANNED:
        leases.end_ticket_failed(crank, ticket, "journal", "its record was damaged on disk")
    elif ticket is not None or message in state.messages:
        crank.fail_run("broker", f"a record that the run cannot do without (message {message}) was damaged on disk",
                       "start a new run from the last checkpoint, and look at the disk")  # fmt: skip


def _session_of(crank: Crank, message: int) -> Session | None:
    return next((session for session in crank.state.sessions.values() if message in session.frames), None)
