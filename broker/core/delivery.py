"""Delivery: from queues to clients, by credit. Served once a step, for the queues that something happened to.

Fair queues go to the consumer that holds fewest; turns where the placement policy says; actions to the env that owns
the session. What was given back goes before what was never delivered. Eval tickets go before training tickets.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from broker.core import leases, ledger, sessions
from broker.core.actions import Attachment, Send
from broker.core.crank import Crank
from broker.core.state import PLAYING, Client, Lease, Queue, Queued, Session, State
from broker.policy.placement import ReplicaView
from schemas.edges import EDGES, Delivery
from schemas.header import Header
from schemas.messages import Deliver


def serve(crank: Crank) -> None:
    """Delivers all that can be delivered on the queues touched in this step."""
    crank.settle()
    queues = crank.state.queues
    for name in sorted(crank.dirty):
        queue = queues[name]
        if queue.ready or queue.back:
            _SERVE[EDGES[name].delivery](crank, name, queue)


def _serve_fair(crank: Crank, name: str, queue: Queue) -> None:
    line = crank.index.fair[name]
    while queue.back or queue.ready:
        first = line.first()
        if first is None:
            return
        client = crank.state.clients[first]
        # One that nobody shares the line with takes all that it has room for: the order is the same, and the line is asked once.
        alone = len(line.held) == 1
        _serve_one(crank, name, queue, client, client.windows[name] - client.held.get(name, 0) if alone else 1)
        crank.index.took(client, name)


def _serve_one(crank: Crank, name: str, queue: Queue, client: Client, room: int) -> None:
    messages = crank.state.messages
    while room and (part := queue.back or queue.ready):
        number = next(iter(part))
        del part[number]
        message = messages[number]
        if name == "tickets":
            _start_ticket(crank, message)
        _deliver(crank, client.name, leases.grant(crank, client, message), message)
        room -= 1


def _start_ticket(crank: Crank, message: Queued) -> None:
    ticket = crank.state.tickets[message.header.ticket or 0]
    ticket.attempt += 1
    ledger.move(ticket, PLAYING)
    if ticket.purpose == "train" and crank.state.first_train_at is None:
        crank.state.first_train_at = crank.now


def _deliver(crank: Crank, client: str, lease: Lease, message: Queued, held_tokens: int = 0, context: tuple[Attachment, ...] = ()) -> None:
    header = message.header
    if message.queue == "tickets":
        header = _with_attempt(crank.state, message)
    order = Deliver(lease=lease.id, header=header, delivery=message.deliveries, held_tokens=held_tokens, context=len(context))
    crank.out.append(Send(client, order, (*context, Attachment(message.id))))  # whoever gets a lease is there


def _with_attempt(state: State, message: Queued) -> Header:
    return replace(message.header, attempt=state.tickets[message.header.ticket or 0].attempt)


def _serve_actions(crank: Crank, _: str, queue: Queue) -> None:
    """Keyed: a session's one action is never refused for want of credit; it waits only while its env is away."""
    state = crank.state
    for part in (queue.back, queue.ready):
        taken = []
        for message_id in part:
            message = state.messages[message_id]
            client = state.clients.get(state.sessions[message.header.ticket or 0].env)
            if client is None or not client.connected or not client.ready:
                continue
            taken.append(message_id)
            lease = leases.grant(crank, client, message)
            _deliver(crank, client.name, lease, message)
        for message_id in taken:
            del part[message_id]


def _serve_turns(crank: Crank, _: str, queue: Queue) -> None:
    """As far as there is room: what waits behind that is not looked at."""
    state = crank.state
    lines = crank.index.replicas
    for part in (queue.back, queue.ready):
        taken = []
        for message_id in part:
            if not any(line.held for line in lines.values()):
                break
            message = state.messages[message_id]
            session = state.sessions[message.header.ticket or 0]
            pinned = state.tickets[session.ticket].version
            chosen = crank.policies.place(session.replica, pinned, _candidates(crank, session.replica, pinned))
            if chosen is None:
                continue
            taken.append(message_id)
            _deliver_turn(crank, chosen.replica, session, message)
        for message_id in taken:
            del part[message_id]


def _candidates(crank: Crank, home: str | None, pinned: int | None) -> list[ReplicaView]:
    """All that placement may choose from: the home replica, and of each version that will do the replica with the least to do."""
    lines = crank.index.replicas
    fitting = lines if pinned is None else {pinned: lines[pinned]} if pinned in lines else {}
    names = {name: None for line in fitting.values() if (name := line.first()) is not None}
    if home is not None and any(home in line.held for line in fitting.values()):
        names[home] = None
    return [_view(crank.state.clients[name]) for name in names]


def _view(client: Client) -> ReplicaView:
    return ReplicaView(name=client.name, in_flight=client.held.get("turns", 0), window=client.windows["turns"],
                       installed=client.installed or 0)  # fmt: skip


def _deliver_turn(crank: Crank, replica: str, session: Session, message: Queued) -> None:
    if session.replica != replica:
        if session.replica is not None:
            sessions.tell_closed(crank, session)
        session.replica, session.held = replica, 0
    missing = [frame for frame in session.frames[session.held :] if frame != message.id]
    context = tuple(Attachment(frame, tokens_only=True) for frame in missing)
    lease = leases.grant(crank, crank.state.clients[replica], message)
    crank.index.took(crank.state.clients[replica], "turns")
    _deliver(crank, replica, lease, message, held_tokens=sum(session.tokens[: session.held]), context=context)


_SERVE: dict[Delivery, Callable[[Crank, str, Queue], None]] = {
    Delivery.FAIR: _serve_fair,
    Delivery.PLACED: _serve_turns,
    Delivery.KEYED: _serve_actions,
    Delivery.PLANNED: lambda crank, name, queue: None,
    Delivery.EACH: lambda crank, name, queue: None,
}
"""Plans and installs go out by rules of their own."""
