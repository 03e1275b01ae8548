"""The ledger: every ticket ends exactly once. Only this file ends tickets or moves their stand.

| stand | next | by |
|---|---|---|
| queued | playing | a lease to an env |
| playing | scoring, queued | the episode's put; a lost lease (a new attempt) |
| scoring | scored | reward's put |
| scored | referencing, planned | the grouping policy; planned at once where there is no reference pass (through ready) |
| referencing | ready | reference's put |
| ready | planned | a step plan |
| planned | trained, ready | the step's commit; never back but by a lost plan |
| any | ended | trained, dropped, failed, evaluated |
"""

from __future__ import annotations

from broker.core.crank import Crank
from broker.core.state import ENDED, PLANNED, PLAYING, QUEUED, READY, REFERENCING, SCORED, SCORING, TRAINED, Stand, State, Ticket
from schemas.errors import InvariantError
from schemas.messages import DropReason

ARROWS: dict[Stand, frozenset[Stand]] = {
    QUEUED: frozenset({PLAYING, ENDED}),
    PLAYING: frozenset({SCORING, QUEUED, ENDED}),
    SCORING: frozenset({SCORED, ENDED}),
    SCORED: frozenset({REFERENCING, READY, ENDED}),
    REFERENCING: frozenset({READY, ENDED}),
    READY: frozenset({PLANNED, ENDED}),
    PLANNED: frozenset({TRAINED, READY, ENDED}),
    TRAINED: frozenset({ENDED}),
    ENDED: frozenset(),
}


MAX_FAILED_IN_A_ROW = 64
"""With retries that is some two hundred failures and not one success: the cause is in the code or the config, not in a ticket."""


def move(ticket: Ticket, to: Stand) -> None:
    """Moves a ticket along one arrow; raises InvariantError, changing nothing, where there is none."""
    if to not in ARROWS[ticket.stand]:
        raise InvariantError(f"ticket {ticket.id}: no way from {ticket.stand} to {to}")
    ticket.stand = to


def in_flight(state: State) -> int:
    """Issued tickets without an ending, provisional or not."""
    return sum(1 for ticket in state.tickets.values() if ticket.stand is not TRAINED)


def drop(crank: Crank, ticket: Ticket, reason: DropReason) -> None:
    """Ends a ticket `dropped(reason)`."""
    dropped = crank.state.ledger.dropped
    dropped[reason] = dropped.get(reason, 0) + 1
    _end(crank, ticket, f"dropped({reason})")


def fail(crank: Crank, ticket: Ticket, boundary: str, reason: str) -> None:
    """Ends a ticket `failed(boundary, reason)`."""
    failed = crank.state.ledger.failed
    failed[boundary] = failed.get(boundary, 0) + 1
    crank.note("ticket_failed", ticket=ticket.id, boundary=boundary, reason=reason)
    crank.state.ledger.failed_in_a_row += 1
    if crank.state.ledger.failed_in_a_row >= MAX_FAILED_IN_A_ROW:
        crank.fail_run(boundary, f"{MAX_FAILED_IN_A_ROW} tickets in a row failed, the last one with: {reason}",
                       "mend it: `tidemill inspect RUN --failed` lists all, `tidemill replay RUN --stage STAGE` tries one")  # fmt: skip
    _end(crank, ticket, f"failed({boundary})")


def evaluated(crank: Crank, ticket: Ticket) -> None:
    """Ends an eval ticket."""
    crank.state.ledger.evaluated += 1
    _end(crank, ticket, "evaluated")


def train_provisionally(crank: Crank, ticket: Ticket) -> None:
    """The ticket's step was committed; final once a checkpoint holds it."""
    move(ticket, TRAINED)
    crank.state.ledger.provisional += 1


def train_finally(crank: Crank, ticket: Ticket) -> None:
    """A checkpoint holds the ticket's step."""
    crank.state.ledger.provisional -= 1
    crank.state.ledger.trained += 1
    _end(crank, ticket, "trained")


def _end(crank: Crank, ticket: Ticket, ending: str) -> None:
    move(ticket, ENDED)
    ledger = crank.state.ledger
    ledger.charged -= ticket.charged
    lengths = ledger.lengths.setdefault(ending, {})
    bucket = ticket.tokens.bit_length()
    lengths[bucket] = lengths.get(bucket, 0) + 1
    del crank.state.tickets[ticket.id]
    crank.forget(ticket.message)
    crank.progressed()


def violations(state: State) -> list[str]:
    """What is wrong with the ledger's sums; empty where nothing is."""
    ledger = state.ledger
    ended = ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + sum(ledger.failed.values())
    wrong = []
    if ledger.issued != ended + ledger.provisional + in_flight(state):
        wrong.append(f"issued {ledger.issued} != ended {ended} + provisional {ledger.provisional} + in flight {in_flight(state)}")
    charged = sum(ticket.charged for ticket in state.tickets.values())
    if ledger.charged != charged:
        wrong.append(f"budget: {ledger.charged} bytes charged, live tickets hold {charged}")
    return wrong
