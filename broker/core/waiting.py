"""The kinds of waiting at a queue, kept apart, as cumulative seconds. Settled once a step, after delivery.

| kind | counted | means |
|---|---|---|
| time in the queue | at each delivery (`leases.grant`) | how long records waited |
| consumer starved | while a consumer has room after delivery | it could work and has nothing that it may take |
| producer blocked | while a record is left after delivery | what was put waits for a consumer's credit or coming |

Between two events nothing changes, so elapsed time times what was so is exact. Only clients and queues that an event touched are looked at.
`samples` has no windows: there the trainer is starved while it is idle, and ready groups are blocked while it is at work.
"""

from __future__ import annotations

from broker.core import groups, plans
from broker.core.crank import Crank
from broker.core.index import ACTOR_TRAIN
from broker.core.state import Client, State
from broker.core.traces import Waiting
from schemas.edges import EDGES, Delivery, Role

CONSUMED: dict[str, tuple[str, ...]] = {
    role: tuple(edge.queue for edge in EDGES.values() if role in edge.consumers and edge.delivery in (Delivery.FAIR, Delivery.PLACED))
    for role in Role
}
"""Queues on which a client of a role may have room."""
WAITED_ON = frozenset(edge.queue for edge in EDGES.values() if edge.delivery not in (Delivery.PLANNED, Delivery.EACH))
"""Queues whose records wait for consumers."""


def settle(crank: Crank) -> None:
    """Brings the counters of all that was touched in this step up to now, and notes what is so from now on."""
    state = crank.state
    trainer_due = crank.plan_due
    touched = crank.touched | crank.seen
    for name in sorted(touched) if len(touched) > 1 else touched:
        client = state.clients[name]
        _look_at(state, client, crank.now)
        trainer_due = trainer_due or client.role == ACTOR_TRAIN
    queues = crank.dirty | crank.thinned if crank.thinned else crank.dirty
    for queue in queues:  # in any order: each is a matter of its own
        if queue in WAITED_ON:
            stream = state.queues[queue]
            waiting, blocked = stream.waiting, bool(stream.ready or stream.back)
            if blocked != waiting.blocked:
                catch_up(waiting, crank.now)
                waiting.blocked = blocked
    if trainer_due:
        _look_at_trainer(crank)


def has_room(client: Client, queue: str) -> bool:
    """It may be given a record of the queue."""
    at_work = client.connected and client.ready and not client.draining and not client.suspect
    return at_work and client.windows.get(queue, 0) > client.held.get(queue, 0)


def _look_at(state: State, client: Client, now: float) -> None:
    at_work = client.connected and client.ready and not client.draining and not client.suspect
    for queue in CONSUMED[client.role]:
        waiting = state.queues[queue].waiting
        room = at_work and client.windows.get(queue, 0) > client.held.get(queue, 0)
        if room != (client.name in waiting.free):
            catch_up(waiting, now)
            if room:
                waiting.free[client.name] = None
            else:
                del waiting.free[client.name]


def _look_at_trainer(crank: Crank) -> None:
    state = crank.state
    waiting = state.queues["samples"].waiting
    trainer = plans.trainer_client(state)
    if trainer is not None and state.trainer.idle:
        if waiting.blocked or waiting.step or trainer.name not in waiting.free:
            catch_up(waiting, crank.now)
            waiting.blocked, waiting.step, waiting.free = False, 0, {trainer.name: None}
        return
    catch_up(waiting, crank.now)
    waiting.free.clear()
    waiting.step = max((step.step for step in state.steps.values() if step.sent), default=0) if trainer is not None else 0
    waiting.blocked = bool(groups.ready(state))


def catch_up(waiting: Waiting, now: float) -> None:
    """Counts what has passed since the last change."""
    waiting.starved_s, waiting.blocked_s = counted(waiting, now)
    waiting.since = now


def counted(waiting: Waiting, now: float) -> tuple[float, float]:
    """Seconds starved and blocked up to `now`; changes nothing."""
    passed = now - waiting.since
    return waiting.starved_s + passed * len(waiting.free), waiting.blocked_s + (passed if waiting.blocked else 0.0)


def violations(state: State) -> list[str]:
    """Where what is noted differs from what is so."""
    wrong = []
    for queue, stream in state.queues.items():
        kind = EDGES[queue].delivery
        if kind in (Delivery.FAIR, Delivery.PLACED):
            consumers = (client for client in state.clients.values() if queue in CONSUMED[client.role])
            free = sorted(client.name for client in consumers if has_room(client, queue))
            noted = sorted(stream.waiting.free)
            wrong += [f"queue {queue}: room at {free}, noted at {noted}"] if free != noted else []
        blocked = stream.waiting.blocked
        if kind not in (Delivery.PLANNED, Delivery.EACH) and blocked != bool(stream.ready or stream.back):
            wrong.append(f"queue {queue}: noted as {'blocked' if blocked else 'free'}, and is not")
    return wrong
