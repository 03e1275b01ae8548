"""Sessions: a live (ticket, attempt), its frames, and who holds what of it.

A session has at most one message in the ring of turns and actions. Its frames stay in the arena until it closes, so
that any replica can be given the context it lacks; the replica that answered last holds all of it.
"""

from __future__ import annotations

from broker.core import ledger
from broker.core.crank import Crank
from broker.core.state import Queued, Session, Stand, Ticket
from schemas.header import Header
from schemas.messages import Abort, CloseSession


def put_turn(crank: Crank, client: str, header: Header) -> int:
    """A turn enters its queue; the first one opens the session. Returns the message id."""
    state = crank.state
    ticket = state.tickets[header.ticket or 0]
    session = state.sessions.get(ticket.id)
    if session is None:
        session = state.sessions[ticket.id] = Session(ticket=ticket.id, attempt=ticket.attempt, env=client)
    message = Queued(id=crank.new_message(), queue="turns", header=header, put_at=crank.now)
    _append(session, message)
    crank.enqueue(message)
    return message.id


def put_action(crank: Crank, header: Header) -> int:
    """An action goes to the session's env; the replica that sent it holds the whole session now."""
    session = crank.state.sessions[header.ticket or 0]
    ticket = crank.state.tickets[session.ticket]
    ticket.newest = max(ticket.newest or 0, header.newest_version or 0)
    message = Queued(id=crank.new_message(), queue="actions", header=header, put_at=crank.now)
    _append(session, message)
    session.held = len(session.frames)
    crank.enqueue(message)
    return message.id


def _append(session: Session, message: Queued) -> None:
    session.frames.append(message.id)
    session.tokens.append(message.header.new_tokens or 0)
    session.ring = message.id


def context_tokens(session: Session) -> int:
    """Length of the session so far."""
    return sum(session.tokens)


def leave_replica(session: Session) -> None:
    """The replica that held the session's KV is gone or forgot it: the next one gets the whole context."""
    session.replica = None
    session.held = 0


def close(crank: Crank, ticket_id: int) -> None:
    """Ends the session: its replica forgets it, its message leaves the ring, its frames go. Nothing where there is none."""
    state = crank.state
    session = state.sessions.pop(ticket_id, None)
    if session is None:
        return
    if session.ring is not None:
        pull_out(crank, session.ring)
    tell_closed(crank, session)
    crank.forget(*session.frames)


def tell_closed(crank: Crank, session: Session) -> None:
    """The session's replica, if any, may forget it."""
    if session.replica is not None:
        crank.send(session.replica, CloseSession(ticket=session.ticket, attempt=session.attempt))


def pull_out(crank: Crank, message_id: int) -> None:
    """Takes a message out of its queue or from under its lease; the holder is told to stop. Nothing where it is in neither."""
    state = crank.state
    message = state.messages.get(message_id)
    if message is None:
        return
    queue = state.queues[message.queue]
    queue.ready.pop(message_id, None)
    queue.back.pop(message_id, None)
    crank.thinned.add(message.queue)
    lease = state.leases.pop(message.lease, None) if message.lease is not None else None
    if lease is not None:
        message.lease = None
        crank.index.ended(lease)
        release_hold(crank, lease.client, lease.queue)
        crank.send(lease.client, Abort(lease=lease.id))


def release_hold(crank: Crank, client_name: str, queue: str) -> None:
    """One lease less on a queue, for its client and for the queue."""
    crank.state.queues[queue].leased -= 1
    client = crank.state.clients.get(client_name)
    if client is not None:
        client.held[queue] = client.held.get(queue, 0) - 1
        crank.touched.add(client_name)
    crank.dirty.add(queue)


def new_attempt(crank: Crank, ticket: Ticket) -> None:
    """The ticket's env lost it: its session closes, and it waits for another, ahead of the rest."""
    close(crank, ticket.id)
    pull_out(crank, ticket.message)
    ledger.move(ticket, Stand.QUEUED)
    ticket.newest = None
    crank.give_back(crank.state.messages[ticket.message])


def withdraw(crank: Crank, ticket: Ticket) -> None:
    """Takes everything of a ticket out of queues and leases; whoever works on it is told to stop."""
    close(crank, ticket.id)
    pull_out(crank, ticket.message)
    if ticket.record is not None:
        pull_out(crank, ticket.record)
    crank.forget(ticket.record)
