"""Rules about hosts: awaited, gone, unable to run a role, out of slots; and where a process's log is."""

from __future__ import annotations

from collections.abc import Iterator

from broker.core import fleet
from broker.core.state import Client, Process
from broker.diagnosis.scene import Scene, Seen, seconds
from schemas.edges import Role


def hosts_awaited(scene: Scene) -> Iterator[Seen]:
    """Hosts have come, and nothing is started yet."""
    state = scene.state
    if not state.processes or any(process.host for process in state.processes.values()):
        return
    here = [host.name for host in fleet.hosts_there(state)]
    lacking = fleet.roles_without_host(state)
    wanted = state.settings.wait_for
    if len(here) >= wanted and not lacking:
        return
    why = f"the run waits for hosts: {len(here)} of {wanted} are here ({', '.join(here) or 'none'})"
    bound = [role for role in lacking if role in state.settings.head_roles]
    if lacking and len(here) >= wanted:
        why = f"no host that is here ({', '.join(here) or 'none'}) may run {', '.join(lacking)}"
        why += f"; {', '.join(bound)} only where the run directory is reached, {state.run_directory}" if bound else ""
    where = f"; for {', '.join(bound)} one beside the run directory, without --directory" if bound else ""
    yield Seen(
        what=why, since_s=scene.now - state.started_at, subject="hosts", advice=f"start the others, or set host.wait_for lower{where}"
    )


def hosts_gone(scene: Scene) -> Iterator[Seen]:
    """A host is gone that has processes still, or with it the last that could start any."""
    hosts = scene.clients(Role.HOST)
    nobody = not any(host.connected for host in hosts)
    if scene.state.processes and nobody:
        since_s = min((scene.now - host.since for host in hosts), default=scene.stalled_s)
        names = ", ".join(host.name for host in hosts)
        yield Seen(
            what=f"the host agent {names} is gone since {seconds(since_s)}: nobody starts processes again",
            since_s=since_s,
            subject=names,
            advice="see logs/host.log; start it again with `tidemill host`",
        )
    for host in [] if nobody else hosts:
        left = [process.name for process in scene.state.processes.values() if process.host == host.name]
        if not host.connected and left:
            yield _gone(scene, host, left)


def _gone(scene: Scene, host: Client, left: list[str]) -> Seen:
    since_s = scene.now - host.since
    return Seen(
        what=f"host {host.name} is gone since {seconds(since_s)} ({host.lost or 'not back after a restart of the broker'}); "
        f"{', '.join(left)} wait for it, or for a host that may run them",
        since_s=since_s,
        subject=host.name,
        advice=f"start it again: tidemill host --name {host.name}; or another with free slots",
    )


def hosts_unfit(scene: Scene) -> Iterator[Seen]:
    """A host that could not run a role, and is not asked again until its next start."""
    for host in scene.clients(Role.HOST):
        for role, why in host.unfit.items():
            yield Seen(
                what=f"host {host.name} cannot run {role}: {why}",
                since_s=scene.now - host.since,
                subject=host.name,
                advice=f"mend that there and start its host agent anew; what it last wrote is in {fleet.log_of(host, f'{role}-*')}",
            )


def slots_lacking(scene: Scene) -> Iterator[Seen]:
    """Processes that no host has room for."""
    waiting = [process for process in scene.state.processes.values() if not process.host]
    if not waiting or len(waiting) == len(scene.state.processes):
        return
    names = ", ".join(process.name for process in waiting)
    offered = sum(len(host.slots) for host in fleet.hosts_there(scene.state))
    yield Seen(
        what=f"{names} {'wait' if len(waiting) > 1 else 'waits'} for a host: {offered} slots are offered, and none that may serve is free",
        since_s=scene.now - scene.state.started_at,
        subject=waiting[0].name,
        advice="start a host with free slots, or set fewer stages.rollout.replicas",
    )


def log_of(scene: Scene, client: Client | Process) -> str:
    """Where a process's log is, as people find it."""
    host = scene.state.clients.get(client.host)
    return fleet.log_of(host, client.name) if host is not None and host.directory else f"logs/{client.name}.log"
