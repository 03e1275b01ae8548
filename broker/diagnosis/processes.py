"""Rules about processes: gone, silent, starting, without a version, holding a slot."""

from __future__ import annotations

from collections.abc import Iterator

from broker.core import evaluations, versions
from broker.core.settings import GRANT_SECONDS
from broker.core.state import Client, GrantState
from broker.diagnosis.hosts import log_of
from broker.diagnosis.scene import Scene, Seen, seconds, usual
from schemas.edges import STAGES, Role

STARTING_S = 60.0
"""A model of some billion parameters is read from a disk within this; a process that takes longer is worth a look."""


def roles_gone(scene: Scene) -> Iterator[Seen]:
    """A stage that the run needs has no process left, or never had one."""
    found = [seen for role in STAGES if scene.state.settings.replicas.get(role, 0) for seen in _role_gone(scene, role)]
    yield from sorted(found, key=lambda seen: -seen.since_s)


def _role_gone(scene: Scene, role: Role) -> Iterator[Seen]:
    clients = scene.clients(role)
    if any(client.connected for client in clients):
        return
    if not clients:
        since_s = scene.now - scene.state.started_at
        if since_s > scene.patience_s:
            yield Seen(
                what=f"{role} is missing: no process of it has said hello, {seconds(since_s)} after the start",
                since_s=since_s,
                subject=role,
                advice=f"see logs/{role}-0.log, or start one: tidemill {role} --broker ENDPOINT --name {role}-0",
            )
        return
    since_s = min(scene.now - client.since for client in clients)
    gone = ", ".join(_how_gone(client) for client in clients)
    whole = "no process of it is left" if len(clients) == 1 else f"all {len(clients)} processes of it are"
    yield Seen(
        what=f"{role} is gone since {seconds(since_s)}, {whole}: {gone}",
        since_s=since_s,
        subject=clients[0].name,
        advice=f"see {log_of(scene, clients[0])}",
    )


def _how_gone(client: Client) -> str:
    return f"{client.name} ({client.lost or 'not back after a restart of the broker'})"


def _last_word(client: Client) -> str:
    """Of a process that says nothing any more: user code that blocks it, for example."""
    return f"; its last word was that it waits {client.waiting}" if client.waiting else ""


def some_gone(scene: Scene) -> Iterator[Seen]:
    """One process of a stage is gone; others of it go on."""
    for client in scene.state.clients.values():
        if client.connected or client.role not in STAGES or not any(other.connected for other in scene.clients(client.role)):
            continue
        since_s = scene.now - client.since
        yield Seen(
            what=f"{client.name} is gone since {seconds(since_s)} ({client.lost}); the other {client.role} processes go on",
            since_s=since_s,
            subject=client.name,
            advice=f"see {log_of(scene, client)}",
        )


def silent(scene: Scene) -> Iterator[Seen]:
    """No word for longer than `suspect_s`. A silent host with silent stages is a machine."""
    suspects = sorted((c for c in scene.state.clients.values() if c.connected and c.suspect), key=lambda c: c.last_seen)
    hosts = [client for client in suspects if client.role == Role.HOST]
    theirs = {host.name: [client for client in suspects if client.host == host.name] for host in hosts}
    told = set()
    for host in hosts:
        if theirs[host.name]:
            told |= {host.name, *(client.name for client in theirs[host.name])}
            names = ", ".join(client.name for client in theirs[host.name])
            since_s = scene.now - host.last_seen
            yield Seen(
                what=f"host {host.name} is silent for {seconds(since_s)}, and {names} with it: the machine is frozen or cut off",
                since_s=since_s,
                subject=host.name,
                advice="look at the machine and the network between",
            )
    for client in suspects:
        if client.name not in told:
            yield _silent(scene, client)


def _silent(scene: Scene, client: Client) -> Seen:
    since_s = scene.now - client.last_seen
    held = sum(client.held.values())
    work = f", and holds {held} records" if held else ""
    rest = max(0.0, scene.state.settings.dead_s - since_s)
    return Seen(
        what=f"{client.name} is silent for {seconds(since_s)}{work}: hung in its own code, frozen (SIGSTOP) or cut off{_last_word(client)}",
        since_s=since_s,
        subject=client.name,
        advice=f"in {seconds(rest)} it counts as dead and its work goes to others",
    )


def _why_not_ready(client: Client) -> str:
    return f"it waits {client.waiting}" if client.waiting else "it said hello and is not ready"


def starting(scene: Scene) -> Iterator[Seen]:
    """A stage whose processes all still load."""
    for role in STAGES:
        clients = [client for client in scene.clients(role) if client.connected]
        if not clients or any(client.ready for client in clients):
            continue
        client = min(clients, key=lambda each: each.since)
        since_s = scene.now - client.since
        if since_s > STARTING_S or scene.stalled:
            yield Seen(
                what=f"{client.name} is still starting, since {seconds(since_s)}: {_why_not_ready(client)}",
                since_s=since_s,
                subject=client.name,
                advice=f"see {log_of(scene, client)}",
            )


def unpublished(scene: Scene) -> Iterator[Seen]:
    """The trainer is ready and has not said which version it starts from."""
    for client in scene.working(Role.ACTOR_TRAIN):
        since_s = scene.now - client.since
        if not scene.state.trainer.digests and since_s > scene.patience_s:
            yield Seen(
                what=f"{client.name} is ready since {seconds(since_s)} and has not published a version",
                since_s=since_s,
                subject=client.name,
                advice=f"see {log_of(scene, client)}",
            )


def unverified(scene: Scene) -> Iterator[Seen]:
    """A version waits for weight-sync, in its queue or under its lease."""
    state = scene.state
    for message in state.messages.values():
        if message.queue != "versions":
            continue
        lease = state.leases.get(message.lease or 0)
        holders = [lease.client] if lease else [client.name for client in scene.working(Role.WEIGHT_SYNC)]
        since_s = scene.now - (lease.granted_at if lease else message.put_at)
        if holders and since_s > scene.late_after_s(state.queues["versions"].service_s):
            yield Seen(
                what=f"version {message.header.newest_version} is not verified: {', '.join(holders)} "
                f"{'works on it' if lease else 'has not taken it'} since {seconds(since_s)}",
                since_s=since_s,
                subject=holders[0],
                advice=f"see logs/{holders[0]}.log",
            )


def no_receipt(scene: Scene) -> Iterator[Seen]:
    """A replica was ordered to install a version and has not proven that it did: it gets no turns."""
    yield from _no_receipt(scene, Role.ROLLOUT)


def unproven(scene: Scene) -> Iterator[Seen]:
    """Reference works without its receipt, but nobody has seen that its frozen model is the starting version."""
    yield from _no_receipt(scene, Role.REFERENCE)


def _no_receipt(scene: Scene, role: Role) -> Iterator[Seen]:
    for client in scene.clients(role):
        since_s = scene.now - client.offered_at
        if not client.ready or client.suspect or client.offered is None or since_s <= scene.patience_s:
            continue
        has = "none" if client.installed is None else f"version {client.installed}"
        yield Seen(
            what=f"{client.name} has sent no receipt for version {client.offered}, ordered {seconds(since_s)} ago; it has {has}",
            since_s=since_s,
            subject=client.name,
            advice=f"see logs/{client.name}.log; is the version whole on its disk?",
        )


def installs_failed(scene: Scene) -> Iterator[Seen]:
    """A replica could not install the version that is wanted."""
    for client in scene.working(Role.ROLLOUT):
        failures = int(client.stats.get("install_failures", 0.0))
        if failures:
            yield Seen(
                what=f"{client.name} failed {failures} times to install version {versions.target(scene.state)}",
                subject=client.name,
                advice=f"see {log_of(scene, client)}",
            )


def pinned(scene: Scene) -> Iterator[Seen]:
    """Turns of an evaluation may be sampled by one version only, and no replica has it or is getting it."""
    evaluation = evaluations.open_one(scene.state)
    replicas = scene.working(Role.ROLLOUT)
    if evaluation is None or not replicas or any(evaluation.version in (client.installed, client.offered) for client in replicas):
        return
    since_s = scene.now - evaluation.started_at
    have = ", ".join(f"{client.name} has {client.installed}" for client in replicas)
    kept = "" if evaluation.version in scene.state.installs else ", and it is not kept any more"
    yield Seen(
        what=f"the evaluation of version {evaluation.version} waits for a replica with it: {have}{kept}",
        since_s=since_s,
        subject=replicas[0].name,
    )


def slots_held(scene: Scene) -> Iterator[Seen]:
    """A grant is held for much longer than is usual."""
    state = scene.state
    for grant in state.grants.values():
        if grant.granted_at is None or scene.now - grant.granted_at <= scene.late_after_s(state.grant_s):
            continue
        since_s = scene.now - grant.granted_at
        waiters = [other.client for other in state.grants.values() if other.granted_at is None and other.overlaps(grant)]
        slots = ", ".join(grant.slots) or "its slots"
        wait = f"; {', '.join(waiters)} waits for it" if waiters else ""
        yield Seen(
            what=f"{grant.client} has not released {slots} for {seconds(since_s)}{usual(state.grant_s)}{wait}",
            since_s=since_s,
            subject=grant.client,
            advice=f"in {seconds(_left_s(scene, grant))} the grant is fenced and goes on",
        )


def _left_s(scene: Scene, grant: GrantState) -> float:
    return max(0.0, GRANT_SECONDS - (scene.now - (grant.granted_at or 0.0)))
