"""The wait graph: who waits for whom, on what, since when. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from broker.core import groups, plans
from broker.core.state import Client, Lease, State
from schemas.edges import EDGES, Delivery, Role


class Wait(Struct, frozen=True, kw_only=True):
    """One arrow: `who` waits for `whom` to do something about `what`."""

    who: str
    whom: str
    what: str
    since_s: float


def graph(state: State, now: float) -> tuple[Wait, ...]:
    """All arrows, from the start of the loop to its end."""
    return (*_queued(state, now), *_leased(state, now), *_installs(state, now), *_slots(state, now), *_trainer(state, now))


def _queued(state: State, now: float) -> Iterator[Wait]:
    for name, queue in state.queues.items():
        head = next(iter(queue.back), None) or next(iter(queue.ready), None)
        edge = EDGES[name]
        if head is not None and edge.delivery is not Delivery.PLANNED:
            takers = [client.name for client in state.clients.values() if client.connected and client.role in edge.consumers]
            whom = ", ".join(takers) or f"any {edge.consumers[0]} process"
            yield Wait(
                who=_producer(name),
                whom=whom,
                what=f"{len(queue.ready) + len(queue.back)} waiting on {name}",
                since_s=now - state.messages[head].put_at,
            )


def _leased(state: State, now: float) -> Iterator[Wait]:
    oldest: dict[tuple[str, str], Lease] = {}
    for lease in state.leases.values():
        first = oldest.setdefault((lease.queue, lease.client), lease)
        if lease.granted_at < first.granted_at:
            oldest[lease.queue, lease.client] = lease
    for (queue, client), lease in sorted(oldest.items(), key=lambda item: list(EDGES).index(item[0][0])):
        count = _held(state.clients.get(client), queue)
        ticket = state.messages[lease.message].header.ticket
        what = f"{count} of {queue} in its hands" + (f", the oldest of ticket {ticket}" if ticket else "")
        yield Wait(who=_producer(queue), whom=client, what=what, since_s=now - lease.granted_at)


def _held(client: Client | None, queue: str) -> int:
    return client.held.get(queue, 0) if client is not None else 0


def _producer(queue: str) -> str:
    producer = EDGES[queue].producer
    return "broker" if producer is None else producer.value


def _installs(state: State, now: float) -> Iterator[Wait]:
    for client in state.clients.values():
        if client.connected and client.offered is not None:
            yield Wait(
                who=Role.WEIGHT_SYNC, whom=client.name, what=f"receipt for version {client.offered}", since_s=now - client.offered_at
            )


def _slots(state: State, now: float) -> Iterator[Wait]:
    for grant in state.grants.values():
        if grant.granted_at is not None:
            continue
        for holder in state.grants.values():
            if holder.granted_at is not None and holder.overlaps(grant):
                yield Wait(who=grant.client, whom=holder.client, what=f"slot {', '.join(grant.slots)}", since_s=now - grant.asked_at)


def _trainer(state: State, now: float) -> Iterator[Wait]:
    trainer = plans.trainer_client(state)
    step = next((each for each in state.steps.values() if each.sent and not each.committed), None)
    if trainer is None:
        return
    if step is not None:
        yield Wait(who="broker", whom=trainer.name, what=f"vote on step {step.step}", since_s=now - step.planned_at)
    elif state.trainer.idle and state.trainer.step < state.settings.steps:
        ready, wanted = len(groups.ready(state)), state.settings.groups_per_step
        yield Wait(who=trainer.name, whom="complete groups", what=f"{ready} of {wanted} ready", since_s=now - trainer.progress_at)
