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
from broker.core.state import Client, State
from broker.core.traces import Waiting
from schemas.edges import EDGES, Delivery, Role

CONSUMED: dict[str, tuple[str, ...]] = {
    role: tuple(edge.queue for edge in EDGES.values() if role in edge.consumers and edge.delivery in (Delivery.FAIR, Delivery.PLACED))
    for role in Role
}
"""Queues on which a client of a role may have room."""


def settle(crank: Crank) -> None:
    """Brings the counters of all that was touched in this step up to now, and notes what is so from now on."""
    state = crank.state
    for name in sorted(crank.touched):
        _look_at(state, state.clients[name], crank.now)
    for queue in sorted(crank.dirty | crank.thinned):
        if EDGES[queue].delivery not in (Delivery.PLANNED, Delivery.EACH):
            stream = state.queues[queue]
            _change(stream.waiting, crank.now, blocked=bool(stream.ready or stream.back))
    if crank.plan_due or any(state.clients[name].role == Role.ACTOR_TRAIN for name in crank.touched):
        _look_at_trainer(state, crank.now)


def has_room(client: Client, queue: str) -> bool:
    """It may be given a record of the queue."""
    at_work = client.connected and client.ready and not client.draining and not client.suspect
    return at_work and client.windows.get(queue, 0) > client.held.get(queue, 0)


def _look_at(state: State, client: Client, now: float) -> None:
    for queue in CONSUMED[client.role]:
        waiting = state.queues[queue].waiting
        room = has_room(client, queue)
        if room != (client.name in waiting.free):
            catch_up(waiting, now)
            if room:
                waiting.free[client.name] = None
            else:
                del waiting.free[client.name]


def _look_at_trainer(state: State, now: float) -> None:
    waiting = state.queues["samples"].waiting
    trainer = plans.trainer_client(state)
    catch_up(waiting, now)
    waiting.free.clear()
    if trainer is None or state.trainer.idle:
        waiting.step = 0
        waiting.blocked = trainer is None and bool(groups.ready(state))
        waiting.free.update({} if trainer is None else {trainer.name: None})
        return
    in_hand = max((step.step for step in state.steps.values() if step.sent), default=0)
    # Ready groups stay while a step is computed: asked once a step until there is one.
    if not waiting.blocked or in_hand != waiting.step:
        waiting.blocked = bool(groups.ready(state))
    waiting.step = in_hand


def _change(waiting: Waiting, now: float, *, blocked: bool) -> None:
    if blocked != waiting.blocked:
        catch_up(waiting, now)
        waiting.blocked = blocked


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
