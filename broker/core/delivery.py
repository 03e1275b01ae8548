"""Delivery: from queues to clients, by credit. Served once a step, for the queues that something happened to.

Fair queues go to the consumer that holds fewest; turns where the placement policy says; actions to the env that owns
the session. What was given back goes before what was never delivered. Eval tickets go before training tickets.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.core import leases, ledger, sessions, waiting
from broker.core.actions import Attachment
from broker.core.crank import Crank
from broker.core.state import Client, Lease, Queue, Queued, Session, Stand, State
from broker.policy.placement import ReplicaView, place
from schemas.edges import EDGES, Delivery, Role
from schemas.header import Header
from schemas.messages import Deliver


def serve(crank: Crank) -> None:
    """Delivers all that can be delivered on the queues touched in this step."""
    for queue in sorted(crank.dirty):
        kind = EDGES[queue].delivery
        if kind is Delivery.FAIR:
            _serve_fair(crank, queue)
        elif kind is Delivery.PLACED:
            _serve_turns(crank)
        elif kind is Delivery.KEYED:
            _serve_actions(crank)


def _pop_first(queue: Queue) -> int | None:
    for part in (queue.back, queue.ready):
        if part:
            first = next(iter(part))
            del part[first]
            return first
    return None


def _consumers(crank: Crank, queue: str) -> list[Client]:
    """Those that had room after the last step, and those of which that may have changed since: never a look at all clients."""
    clients = crank.state.clients
    names = {**crank.state.queues[queue].waiting.free, **dict.fromkeys(sorted(crank.touched))}
    return [clients[name] for name in names if waiting.has_room(clients[name], queue)]


def _serve_fair(crank: Crank, name: str) -> None:
    queue = crank.state.queues[name]
    while queue.back or queue.ready:
        consumers = _consumers(crank, name)
        if not consumers:
            return
        client = min(consumers, key=lambda c: (c.held.get(name, 0), c.name))
        message = crank.state.messages[_pop_first(queue) or 0]
        if name == "tickets":
            _start_ticket(crank, message)
        lease = leases.grant(crank, client, message)
        _deliver(crank, client.name, lease, message)


def _start_ticket(crank: Crank, message: Queued) -> None:
    ticket = crank.state.tickets[message.header.ticket or 0]
    ticket.attempt += 1
    ledger.move(ticket, Stand.PLAYING)
    if ticket.purpose == "train" and crank.state.first_train_at is None:
        crank.state.first_train_at = crank.now


def _deliver(crank: Crank, client: str, lease: Lease, message: Queued, held_tokens: int = 0, context: tuple[Attachment, ...] = ()) -> None:
    header = message.header
    if message.queue == "tickets":
        header = _with_attempt(crank.state, message)
    order = Deliver(lease=lease.id, header=header, delivery=message.deliveries, held_tokens=held_tokens, context=len(context))
    crank.send(client, order, *context, Attachment(message.id))


def _with_attempt(state: State, message: Queued) -> Header:
    return replace(message.header, attempt=state.tickets[message.header.ticket or 0].attempt)


def _serve_actions(crank: Crank) -> None:
    """Keyed: a session's one action is never refused for want of credit; it waits only while its env is away."""
    state = crank.state
    queue = state.queues["actions"]
    for message_id in [*queue.back, *queue.ready]:
        message = state.messages[message_id]
        client = state.clients.get(state.sessions[message.header.ticket or 0].env)
        if client is None or not client.connected or not client.ready:
            continue
        queue.back.pop(message_id, None)
        queue.ready.pop(message_id, None)
        lease = leases.grant(crank, client, message)
        _deliver(crank, client.name, lease, message)


def _serve_turns(crank: Crank) -> None:
    state = crank.state
    queue = state.queues["turns"]
    for message_id in [*queue.back, *queue.ready]:
        replicas = _replicas(crank)
        if not replicas:
            return
        message = state.messages[message_id]
        session = state.sessions[message.header.ticket or 0]
        chosen = place(session.replica, state.tickets[session.ticket].version, replicas)
        if chosen is None:
            continue
        queue.back.pop(message_id, None)
        queue.ready.pop(message_id, None)
        _deliver_turn(crank, chosen.replica, session, message)


def _replicas(crank: Crank) -> list[ReplicaView]:
    return [
        ReplicaView(name=c.name, in_flight=c.held.get("turns", 0), window=c.windows["turns"], installed=c.installed)
        for c in _consumers(crank, "turns") if c.role == Role.ROLLOUT and c.installed is not None
    ]  # fmt: skip


def _deliver_turn(crank: Crank, replica: str, session: Session, message: Queued) -> None:
    if session.replica != replica:
        if session.replica is not None:
            sessions.tell_closed(crank, session)
        session.replica, session.held = replica, 0
    missing = [frame for frame in session.frames[session.held :] if frame != message.id]
    context = tuple(Attachment(frame, tokens_only=True) for frame in missing)
    lease = leases.grant(crank, crank.state.clients[replica], message)
    _deliver(crank, replica, lease, message, held_tokens=sum(session.tokens[: session.held]), context=context)
