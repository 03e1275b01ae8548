"""Who waits for whom, on what, since when: sentences drawn from the state. Pure; asked by the live view when nothing
moves.
"""

from __future__ import annotations

from broker.core import evaluations, fleet, groups, plans, versions
from broker.core.state import Phase, Stand, State
from schemas.edges import EDGES, STAGES, Delivery, Role


def waits(state: State, now: float) -> list[str]:
    """Root causes first."""
    if state.phase in (Phase.CLOSING, Phase.CLOSED):
        return []
    if state.processes and not any(process.host for process in state.processes.values()):
        return [*_hosts(state, now), *_spoken(state)]
    return [*_missing(state, now), *_suspects(state, now), *_versions(state), *_queues(state, now), *_trainer(state, now), *_spoken(state)]


def _ago(seconds: float) -> str:
    return f"since {seconds:.0f} s"


def _hosts(state: State, now: float) -> list[str]:
    """Nothing was started yet."""
    here = ", ".join(host.name for host in fleet.hosts_there(state)) or "none"
    lacking = fleet.roles_without_host(state)
    for_roles = f", and one that may run {', '.join(lacking)}" if lacking else ""
    return [f"the run waits for {state.settings.wait_for} hosts{for_roles}; here: {here}, {_ago(now - state.started_at)}"]


def _missing(state: State, now: float) -> list[str]:
    sentences = []
    for role in STAGES:
        if not state.settings.replicas.get(role, 0):
            continue
        clients = [c for c in state.clients.values() if c.role == role]
        if any(c.connected and c.ready for c in clients):
            continue
        if not clients:
            sentences.append(f"no {role} process has said hello yet, {_ago(now - state.started_at)}")
        for client in clients:
            what = "is still starting" if client.connected else "is gone"
            sentences.append(f"{client.name} {what}, {_ago(now - client.since)}")
    return sentences


def _suspects(state: State, now: float) -> list[str]:
    silent = [client for client in state.clients.values() if client.connected and client.suspect]
    return [f"{client.name} is silent, {_ago(now - client.last_seen)}: hung, frozen or cut off" for client in silent]


def _versions(state: State) -> list[str]:
    wanted = versions.target(state)
    sentences = []
    if wanted is None:
        sentences.append("rollout waits for the first version: actor-train publishes it, weight-sync verifies it")
    for client in state.clients.values():
        if client.role == Role.ROLLOUT and client.connected and client.ready and wanted is not None and client.installed != wanted:
            sentences.append(f"{client.name} has version {client.installed}, {wanted} is ordered and without a receipt")
    return sentences


def _queues(state: State, now: float) -> list[str]:
    sentences = []
    for name, queue in state.queues.items():
        if EDGES[name].delivery is Delivery.PLANNED:
            continue
        head = next(iter(queue.back), None) or next(iter(queue.ready), None)
        if head is not None:
            consumers = ", ".join(c.name for c in state.clients.values() if c.connected and c.role in EDGES[name].consumers)
            age = now - state.messages[head].put_at
            depth = len(queue.ready) + len(queue.back)
            sentences.append(f"{depth} on {name} wait for {consumers or EDGES[name].consumers[0]}, {_ago(age)}")
        oldest = min((lease for lease in state.leases.values() if lease.queue == name), key=lambda lease: lease.granted_at, default=None)
        if oldest is not None and name != "tickets":
            sentences.append(f"{oldest.client} works on {queue.leased} of {name}, the oldest {_ago(now - oldest.granted_at)}")
    return sentences


def _trainer(state: State, now: float) -> list[str]:
    open_step = next((step for step in state.steps.values() if step.sent and not step.committed), None)
    if open_step is not None:
        return [f"actor-train computes step {open_step.step}, {_ago(now - open_step.planned_at)}"]
    if plans.trainer_client(state) is None or state.trainer.step >= state.settings.steps:
        return []
    pond, wanted = len(groups.ready(state)), state.settings.groups_per_step
    evaluation = evaluations.open_one(state)
    if evaluation is not None and state.first_train_at is None:
        return [f"training waits for the evaluation: {evaluation.scored + evaluation.failed} of {evaluation.problems} problems done"]
    playing = sum(1 for ticket in state.tickets.values() if ticket.stand is Stand.PLAYING)
    return [f"actor-train waits for groups: {pond} of {wanted} ready, {playing} sessions playing"] if pond < wanted else []


def _spoken(state: State) -> list[str]:
    return [f"{c.name}: {c.waiting}" for c in state.clients.values() if c.connected and c.waiting]
