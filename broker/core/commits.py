"""Numbered messages, and commits above all: a stage's unit of work, all or nothing, in the order of its producer.

The next number is taken, an earlier one was taken already, a later one shows a hole and is answered with the number to
resend from. A refusal spends its number. Checks come first and change nothing; then acknowledgements, failures and puts
are applied.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core import groups, leases, ledger, sessions, versions
from broker.core.actions import Keep, Reply
from broker.core.crank import Crank
from broker.core.lengths import uneven
from broker.core.state import PLAYING, REFERENCING, SCORING, Client, Queued, State, Ticket
from schemas.edges import EDGES
from schemas.header import Header
from schemas.messages import Commit, Committed, Refuse, ResendFrom

STAND_FOR_PUT = {"turns": PLAYING, "actions": PLAYING, "episodes": PLAYING, "scored": SCORING,
                 "samples": REFERENCING}  # fmt: skip
"""Where a ticket must stand for a record of it to enter a queue."""

NO_ROOM = "no room for what has no ticket"
PUT_AGAIN_MAX = 64
"""Refusals by a full disk that are remembered of one client."""


def on_commit(crank: Crank, client: Client, commit: Commit) -> None:
    """Takes or refuses a commit whose number was the next."""
    refusal = _refusal(crank.state, client, commit)
    if refusal is not None:
        _refuse(crank, client, commit.seq, *refusal)
        return
    _apply(crank, client, commit)
    crank.send(client.name, Committed(seq=commit.seq))


def refuse_unread(crank: Crank, client: Client, epoch: int, seq: int, detail: str) -> None:
    """A commit whose frames do not fit its headers: its number is spent all the same."""
    if takes_number(crank, client, epoch, seq):
        _refuse(crank, client, seq, "bad_frames", detail)


def _refuse(crank: Crank, client: Client, seq: int, reason: str, detail: str) -> None:
    if reason == "disk_full":
        client.put_again = [*client.put_again, seq][-PUT_AGAIN_MAX:]
    crank.note("commit_refused", client=client.name, seq=seq, reason=reason, detail=detail)
    crank.send(client.name, Refuse(reason=reason, detail=detail, seq=seq))


def refuse_again(crank: Crank, client: Client, next_seq: int) -> None:
    """Ahead of a welcome, which answers for all numbers below: what a full disk refused, from the oldest that the client still keeps on."""
    client.put_again = [seq for seq in client.put_again if seq >= next_seq]
    for seq in client.put_again:
        crank.send(client.name, Refuse(reason="disk_full", detail=NO_ROOM, seq=seq))


def takes_number(crank: Crank, client: Client, epoch: int, seq: int) -> bool:
    """True where `seq` is the next number, which is then spent; else the client is told what to do."""
    if seq == client.next_seq and epoch == client.epoch:
        client.next_seq = seq + 1
        client.gap_at = 0
        return True
    if epoch != client.epoch:
        crank.out.append(Reply(Refuse(reason="fenced", detail=f"epoch {epoch} is not {client.epoch}", seq=seq, fatal=True)))
        return False
    if seq > client.next_seq:
        ask_resend(crank, client)
        return False
    crank.send(client.name, Committed(seq=client.next_seq - 1))
    return False


def ask_resend(crank: Crank, client: Client) -> None:
    """There is a hole at the next number. Asked again while it stays: what is sent again may be torn again."""
    if client.gap_at != client.next_seq or crank.now >= client.gap_asked_at + crank.state.settings.heartbeat_s:
        client.gap_at, client.gap_asked_at = client.next_seq, crank.now
        crank.send(client.name, ResendFrom(seq=client.next_seq))


def _refusal(state: State, client: Client, commit: Commit) -> tuple[str, str] | None:
    taken = [*commit.acks, *(failure.lease for failure in commit.fails)] if commit.fails else commit.acks
    if len(taken) > 1 and len(set(taken)) != len(taken):
        return "bad_commit", "a lease stands twice in one commit"
    held = state.leases
    for lease_id in taken:
        lease = held.get(lease_id)
        if lease is None or lease.client != client.name:
            return "stale_lease", f"lease {lease_id} is not held by {client.name}"
    for header in commit.puts:
        problem = _put_problem(state, client, header)
        if problem is not None:
            return problem
    return _pairing_problem(state, commit)


def _put_problem(state: State, client: Client, header: Header) -> tuple[str, str] | None:
    edge = EDGES.get(header.queue)
    if edge is None or edge.producer != client.role or edge.record != header.record:
        return "role", f"a {client.role} may not put a {header.record} on {header.queue!r}"
    if header.pipeline != state.settings.pipeline:
        return "pipeline", f"{header.pipeline!r} is not carried here"
    if not edge.of_ticket and header.ticket is not None:
        return "bad_commit", f"a record of {header.queue!r} belongs to no ticket, yet names {header.ticket}"
    if not edge.of_ticket:
        return ("disk_full", NO_ROOM) if state.disk_full else None
    ticket = state.tickets.get(header.ticket or 0)
    if ticket is None or header.group != ticket.group or header.member != ticket.member:
        return "no_ticket", f"ticket {header.ticket} is not in flight"
    if header.attempt != ticket.attempt or ticket.stand is not STAND_FOR_PUT[header.queue]:
        return "late", f"ticket {ticket.id} is {ticket.stand} in attempt {ticket.attempt}, not in attempt {header.attempt}"
    if header.queue in ("turns", "episodes") and _player(state, ticket) != client.name:
        return "late", f"ticket {ticket.id} is played by {_player(state, ticket)}"
    problem = uneven(header)
    return None if problem is None else ("bad_commit", problem)


def _player(state: State, ticket: Ticket) -> str | None:
    lease = state.leases.get(state.messages[ticket.message].lease or 0)
    return lease.client if lease is not None else None


def _pairing_problem(state: State, commit: Commit) -> tuple[str, str] | None:
    """Each put of a ticket follows from the lease of what caused it, and each such lease is answered by a put: nothing enters or leaves
    the loop unasked."""
    acked = set()
    for lease_id in commit.acks:
        lease = state.leases[lease_id]
        ticket = state.messages[lease.message].header.ticket
        if ticket is not None:
            acked.add((lease.queue, ticket))
    going_on = [header.ticket for header in commit.puts if header.ticket is not None]
    if not (acked or going_on or commit.fails):
        return None
    if len(going_on) > 1 and len(set(going_on)) != len(going_on):
        return "bad_commit", "two puts of one ticket"
    needed = set()
    for header in commit.puts:
        if header.ticket is not None:
            needed |= _causes(state, header.queue, header.ticket)
    if commit.fails:
        failing = [state.messages[state.leases[failure.lease].message].header.ticket for failure in commit.fails]
        twice = next((ticket for ticket in failing if ticket is not None and (ticket in going_on or failing.count(ticket) > 1)), None)
        if twice is not None:
            return "bad_commit", f"ticket {twice} fails, and fails again or goes on in the same commit"
    if needed == acked:
        return None
    queue, ticket = min(needed ^ acked)
    return "bad_commit", f"{queue}: a lease of ticket {ticket} and the put that answers it must stand in one commit"


def _causes(state: State, queue: str, ticket: int) -> set[tuple[str, int]]:
    if queue == "turns":
        return {("actions", ticket)} if ticket in state.sessions else set()
    if queue == "episodes":
        return {("tickets", ticket)} | ({("actions", ticket)} if ticket in state.sessions else set())
    return {(CAUSE[queue], ticket)}


CAUSE = {"actions": "turns", "scored": "episodes", "samples": "scored"}
"""The queue whose lease a put answers."""


def _apply(crank: Crank, client: Client, commit: Commit) -> None:
    if commit.acks:
        crank.forget(*[_acknowledge(crank, lease_id) for lease_id in commit.acks])
    for failure in commit.fails:
        leases.report_failure(crank, failure)
    if commit.puts:
        before = len(crank.out)
        kept = tuple([_put(crank, client, header) for header in commit.puts])
        crank.out.insert(before, Keep(kept))  # ahead of what the puts caused: an install is sent on in the same step


def _acknowledge(crank: Crank, lease_id: int) -> int:
    """Returns the message that nobody needs any more; 0 where its frames are needed further."""
    message = leases.acknowledge(crank, lease_id)
    queue = message.queue
    if queue in ("turns", "actions"):
        crank.state.sessions[message.header.ticket or 0].ring = None
        del crank.state.messages[message.id]
    elif queue == "episodes":
        crank.state.tickets[message.header.ticket or 0].record = None
        return message.id
    elif queue in ("scored", "versions"):
        return message.id
    return 0


def _put(crank: Crank, client: Client, header: Header) -> int:
    if header.queue == "turns":
        return sessions.put_turn(crank, client.name, header)
    return _PUT[header.queue](crank, header)


def _put_episode(crank: Crank, header: Header) -> int:
    ticket = crank.state.tickets[header.ticket or 0]
    sessions.close(crank, ticket.id)
    ledger.move(ticket, SCORING)
    ticket.tokens, ticket.trainable = header.new_tokens or 0, header.trainable_tokens or 0
    ticket.oldest, ticket.newest = header.oldest_version, header.newest_version
    message = Queued(id=crank.new_message(), queue="episodes", header=header, put_at=crank.now)
    ticket.record = message.id
    crank.enqueue(message)
    return message.id


_PUT: dict[str, Callable[[Crank, Header], int]] = {
    "actions": sessions.put_action,
    "episodes": _put_episode,
    "scored": groups.put_scored,
    "samples": groups.put_sample,
    "versions": versions.put_version,
    "installs": versions.put_install,
}
"""What a record does to the state, by its queue; returns its message id."""
