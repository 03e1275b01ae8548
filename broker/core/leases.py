"""Leases: who holds what, until when; and what becomes of a message whose holder is lost, late or has failed.

Every redelivery of a ticket is a new attempt. Deaths count up to `max_deliveries`, failures that a stage reports up to
`member_retries`.
"""

from __future__ import annotations

from broker.core import dead, groups, ledger, sessions
from broker.core.crank import Crank, smoothed
from broker.core.settings import LEASE_SECONDS
from broker.core.state import PLAYING, Client, Lease, Queued, Ticket
from schemas.messages import Abort, Failure


def grant(crank: Crank, client: Client, message: Queued) -> Lease:
    """Leases a message that has just left its queue. The caller tells the index (`took`) once it has granted all that it will."""
    state, now, name = crank.state, crank.now, message.queue
    number = state.next_lease
    state.next_lease = number + 1
    lease = state.leases[number] = Lease(
        id=number, client=client.name, message=message.id, queue=name, granted_at=now,
        deadline=now + state.settings.lease_s.get(name, LEASE_SECONDS),
    )  # fmt: skip
    crank.index.granted(lease)
    client.held[name] = client.held.get(name, 0) + 1
    queue, waited = state.queues[name], now - message.put_at
    queue.leased += 1
    queue.wait_s = smoothed(queue.wait_s, waited)
    queue.waited_s += waited
    queue.deliveries += 1
    crank.touched.add(client.name)
    message.deliveries += 1
    message.lease = number
    return lease


def acknowledge(crank: Crank, lease_id: int) -> Queued:
    """Ends a lease by its holder's commit; returns the message, which is out of its queue now."""
    state = crank.state
    lease = state.leases.pop(lease_id)
    crank.index.ended(lease)
    sessions.release_hold(crank, lease.client, lease.queue)
    queue = state.queues[lease.queue]
    queue.service_s = smoothed(queue.service_s, crank.now - lease.granted_at)
    message = state.messages[lease.message]
    message.lease = None
    return message


def lose(crank: Crank, lease_id: int, cause: str) -> None:
    """Ends a lease without an acknowledgement: the message goes back, or to the dead letters after too many deliveries."""
    lease = crank.state.leases.pop(lease_id, None)
    if lease is None:
        return
    crank.index.ended(lease)
    sessions.release_hold(crank, lease.client, lease.queue)
    crank.note("lease_lost", lease=lease.id, queue=lease.queue, client=lease.client, cause=cause)
    message = crank.state.messages[lease.message]
    message.lease = None
    dead.remember(crank, message, lease.client, cause)
    if lease.queue == "tickets" or (lease.queue == "actions" and not _is_played_by(crank, message, lease.client)):
        _lose_session(crank, crank.state.tickets[message.header.ticket or 0], f"{lease.client}, {cause}")
        return
    if lease.queue == "turns":
        session = crank.state.sessions[message.header.ticket or 0]
        sessions.tell_closed(crank, session)
        sessions.leave_replica(session)
    if message.deliveries >= crank.state.settings.max_deliveries:
        _dead_letter(crank, message)
        return
    crank.give_back(message)


def _is_played_by(crank: Crank, action: Queued, client: str) -> bool:
    """The session's env still holds its ticket: an action that it lost on the way is only delivered anew."""
    ticket = crank.state.messages[crank.state.tickets[action.header.ticket or 0].message]
    lease = crank.state.leases.get(ticket.lease or 0)
    return lease is not None and lease.client == client


def _lose_session(crank: Crank, ticket: Ticket, cause: str) -> None:
    """The env lost the ticket: another attempt, unless too many envs died of it; `cause`: of which the last one."""
    ticket.deaths += 1
    if ticket.deaths >= crank.state.settings.max_deliveries:
        reason = f"{ticket.deaths} env processes were lost while they played it, the last one was {cause}; see its log"
        dead.bury(crank, crank.state.messages[ticket.message], reason)
        end_ticket_failed(crank, ticket, "dead_letter", reason)
    else:
        sessions.new_attempt(crank, ticket)


def _dead_letter(crank: Crank, message: Queued) -> None:
    header = message.header
    dead.bury(crank, message, f"{message.queue}: {message.deliveries} deliveries without an answer")
    if header.ticket is None:
        crank.fail_run(message.queue, f"a record of queue {message.queue} could not be processed in {message.deliveries} deliveries",
                       "look into the logs of the stage that consumes it")  # fmt: skip
        return
    end_ticket_failed(crank, crank.state.tickets[header.ticket], "dead_letter",
                      f"{message.queue}: {message.deliveries} deliveries without an answer")  # fmt: skip


def report_failure(crank: Crank, failure: Failure) -> None:
    """A stage could not process a leased record and says why."""
    lease = crank.state.leases[failure.lease]
    message = crank.state.messages[lease.message]
    cause = f"{failure.boundary}: {failure.reason}"
    dead.remember(crank, message, lease.client, cause)
    if message.header.ticket is None:
        dead.bury(crank, message, cause)
        acknowledge(crank, failure.lease)
        crank.forget(message.id)
        crank.fail_run(failure.boundary, failure.reason, f"look into the logs of {lease.client}")
        return
    ticket = crank.state.tickets[message.header.ticket]
    acknowledge(crank, failure.lease)
    ticket.failures += 1
    crank.note("member_failed", ticket=ticket.id, boundary=failure.boundary, reason=failure.reason, failures=ticket.failures)
    if ticket.failures > crank.state.settings.member_retries:
        dead.bury(crank, message, cause)
        end_ticket_failed(crank, ticket, failure.boundary, failure.reason)
    elif lease.queue == "turns":
        sessions.leave_replica(crank.state.sessions[ticket.id])
        crank.give_back(message)
    elif ticket.stand is PLAYING:
        sessions.new_attempt(crank, ticket)
    else:
        crank.give_back(message)


def end_ticket_failed(crank: Crank, ticket: Ticket, boundary: str, reason: str) -> None:
    """Ends a ticket `failed`, wherever it stands, and lets its group go on without it."""
    sessions.withdraw(crank, ticket)
    ledger.fail(crank, ticket, boundary, reason)
    groups.member_ended(crank, ticket)


def expire(crank: Crank) -> None:
    """Loses every lease past its deadline."""
    for lease in [lease for lease in crank.state.leases.values() if lease.deadline <= crank.now]:
        crank.send(lease.client, Abort(lease=lease.id))
        lose(crank, lease.id, "deadline")
