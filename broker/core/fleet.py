"""The fleet: which stage processes a run wants, on which host, on which slots; and what an exit means.

Rollout replicas take the slots from the first on, training and reference share the last one (by grants). With one slot
all share it.
"""

from __future__ import annotations

from broker.core import grants, leases, sessions
from broker.core.crank import Crank
from broker.core.state import Client, Phase, Process, State
from schemas.edges import SLOT_ROLES, STAGES, Role
from schemas.messages import ProcessExited, StartProcess


def on_host_ready(crank: Crank, client: Client, running: dict[str, int]) -> None:
    """A host offers its slots: it starts what this run wants there and does not run yet."""
    state = crank.state
    if state.phase in (Phase.CLOSING, Phase.CLOSED):
        return
    if not state.processes:
        _want_all(state)
    _assign(state, client)
    for process in state.processes.values():
        if process.host == client.name and process.name not in running:
            process.starts += 1
            crank.send(client.name, StartProcess(name=process.name, role=Role(process.role), slots=process.slots))


def _want_all(state: State) -> None:
    for role in STAGES:
        for index in range(state.settings.replicas[role]):
            name = f"{role}-{index}"
            state.processes[name] = Process(name=name, role=role)


def _assign(state: State, host: Client) -> None:
    """All processes without a host go to this one."""
    rollouts = 0
    for process in state.processes.values():
        if process.host:
            continue
        process.host = host.name
        if process.role not in SLOT_ROLES or not host.slots:
            continue
        if process.role == Role.ROLLOUT:
            process.slots = (host.slots[rollouts % max(1, len(host.slots) - 1)],)
            rollouts += 1
        else:
            process.slots = (host.slots[-1],)


def on_exit(crank: Crank, exited: ProcessExited) -> None:
    """A host's process ended: quicker news than its silence. Its leases go back at once."""
    state = crank.state
    process = state.processes.get(exited.name)
    if process is not None:
        process.exits += 1
    crank.note("process_exited", process=exited.name, code=exited.code, final=int(exited.final), restarts=exited.restarts)
    client = state.clients.get(exited.name)
    if client is not None and client.connected:
        lose_client(crank, client, f"exit {exited.code}")
    if exited.final and state.phase not in (Phase.CLOSING, Phase.CLOSED):
        crank.fail_run(exited.name, f"ended with status {exited.code} after {exited.restarts} restarts and is not started again",
                       f"read logs/{exited.name}.log in the run directory; mend the cause and start again", exited.last_lines)  # fmt: skip


def lose_client(crank: Crank, client: Client, cause: str) -> None:
    """A client is gone: whatever it held goes back."""
    client.connected = client.ready = client.suspect = False
    client.since, client.installed, client.offered = crank.now, None, None
    client.windows, client.waiting, client.lost = {}, "", cause
    crank.touched.add(client.name)
    crank.note("client_lost", client=client.name, cause=cause)
    for lease in crank.index.leases_of(client.name):
        leases.lose(crank, lease, cause)
    if client.role == Role.ROLLOUT:
        for session in crank.state.sessions.values():
            if session.replica == client.name:
                sessions.leave_replica(session)
    if client.role == Role.ACTOR_TRAIN:
        crank.state.trainer.idle = False
    grants.drop_of(crank, client.name)
