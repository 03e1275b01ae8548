"""The fleet: which stage processes a run wants, on which host; what becomes of them when one of them or their host ends.

A process belongs to one host at a time. It moves only once that host is given up and the process itself is too; a host that comes back is
told to stop what it has lost. Where a process may go says `assignment.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core import grants, leases, peers, sessions
from broker.core.assignment import Offer, Place, assign, spare
from broker.core.crank import Crank
from broker.core.state import Client, Phase, Process, State
from schemas.edges import STAGES, Role
from schemas.messages import ProcessExited, StartProcess, StopProcess

UNFIT_MAX = 300
"""Characters kept of why a host cannot run a role."""
BYE = "bye"
"""How the cause of a loss begins where the client itself said goodbye."""


def on_host_ready(crank: Crank, host: Client, running: dict[str, int]) -> None:
    """A host offers its slots: it starts what this run wants there and does not run yet, and stops what is somebody else's by now."""
    state = crank.state
    if _is_ending(state):
        return
    _want_all(state)
    for name in running:
        if name not in state.processes or state.processes[name].host != host.name:
            crank.note("process_stopped", process=name, host=host.name)
            crank.send(host.name, StopProcess(name=name))
    for process in state.processes.values():
        if process.host != host.name or process.name in running:
            continue
        if process.role in _fit_for(state, host) and set(process.slots) <= set(host.slots):
            _start(crank, process)
        else:  # the host was started anew, and offers something else
            process.host, process.slots = "", ()
    settle(crank)


def settle(crank: Crank) -> None:
    """Gives a host to whatever waits for one, and free slots to more replicas."""
    state = crank.state
    if _is_ending(state) or not state.processes:
        return
    offers = _offers(state)
    if not offers or not _may_begin(state, offers):
        return
    waiting = [process for process in state.processes.values() if not process.host or is_orphan(state, process, crank.now)]
    names = {process.name for process in waiting}
    placed = [_place(process) for process in state.processes.values() if process.name not in names]
    found = assign(map(_place, waiting), placed, offers) if waiting else []
    _carry_out(crank, found)
    allowed = state.settings.rollouts_max - _count(state, Role.ROLLOUT)
    if allowed > 0:
        _add_replicas(crank, min(allowed, spare([*placed, *found], offers)), [*placed, *found], offers)


def _is_ending(state: State) -> bool:
    return state.phase in (Phase.CLOSING, Phase.CLOSED)


def _want_all(state: State) -> None:
    if state.processes:
        return
    for role in STAGES:
        for index in range(state.settings.replicas[role]):
            name = f"{role}-{index}"
            state.processes[name] = Process(name=name, role=role)


def _may_begin(state: State, offers: list[Offer]) -> bool:
    """Nothing is started before as many hosts are there as the run waits for, and among them one for every role; then anything may be."""
    if any(process.host for process in state.processes.values()):
        return True
    return len(offers) >= state.settings.wait_for and not roles_without_host(state)


def roles_without_host(state: State) -> list[str]:
    """Roles that no host which is there may run, and that nobody serves who was started by hand."""
    fit = {role for host in hosts_there(state) for role in _fit_for(state, host)}
    served = {client.role for client in state.clients.values() if client.connected}
    wanted = dict.fromkeys(process.role for process in state.processes.values())
    return [role for role in wanted if role not in fit and role not in served]


def _offers(state: State) -> list[Offer]:
    return [Offer(host.name, host.slots, _fit_for(state, host)) for host in hosts_there(state)]


def hosts_there(state: State) -> list[Client]:
    """Host agents that may be given processes, in the order in which they first came."""
    return [client for client in state.clients.values() if client.role == Role.HOST and client.connected and client.ready]


def _fit_for(state: State, host: Client) -> frozenset[str]:
    """Roles that a host allows, that may be away from the run directory if it is, and that have not proved impossible there."""
    away = state.settings.head_roles if host.directory else ()
    return frozenset(role for role in host.runs or STAGES if role not in away and role not in host.unfit)


def is_orphan(state: State, process: Process, now: float) -> bool:
    """Its host is given up, and so is it: nobody can be doing its work any more without being refused."""
    host, client = state.clients.get(process.host), state.clients.get(process.name)
    if host is None or host.connected or (client is not None and client.connected):
        return False
    return host.lost.startswith(BYE) or now - host.last_seen > state.settings.dead_s


def _place(process: Process) -> Place:
    return Place(process.name, process.role, process.host, process.slots)


def _count(state: State, role: str) -> int:
    return sum(process.role == role for process in state.processes.values())


def _carry_out(crank: Crank, places: Iterable[Place]) -> None:
    for place in places:
        process = crank.state.processes[place.name]
        kind = "process_moved" if process.host else "process_assigned"
        crank.note(kind, process=place.name, host=place.host, before=process.host, slots=" ".join(place.slots))
        process.host, process.slots = place.host, place.slots
        _start(crank, process)


def _add_replicas(crank: Crank, number: int, placed: list[Place], offers: list[Offer]) -> None:
    state = crank.state
    first = _count(state, Role.ROLLOUT)
    for index in range(first, first + number):
        name = f"{Role.ROLLOUT}-{index}"
        state.processes[name] = Process(name=name, role=Role.ROLLOUT)
    new = [_place(process) for process in state.processes.values() if process.role == Role.ROLLOUT and not process.host]
    _carry_out(crank, assign(new, placed, offers))


def _start(crank: Crank, process: Process) -> None:
    process.starts += 1
    crank.send(process.host, StartProcess(name=process.name, role=Role(process.role), slots=process.slots))


# --- ends -------------------------------------------------------------------------------------------------------------------


def on_exit(crank: Crank, host: Client, exited: ProcessExited) -> None:
    """A host's process ended: quicker news than its silence. Its leases go back at once."""
    state = crank.state
    process = state.processes.get(exited.name)
    crank.note("process_exited", process=exited.name, code=exited.code, final=int(exited.final), restarts=exited.restarts, host=host.name)
    if process is not None and process.host != host.name:
        return  # it runs elsewhere by now: what a host says that has lost it concerns nobody
    if process is not None:
        process.exits += 1
    client = state.clients.get(exited.name)
    if client is not None and client.connected:
        lose_client(crank, client, f"exit {exited.code}")
    if exited.final and not _is_ending(state) and not _goes_on_without(crank, host, process, exited):
        crank.fail_run(exited.name, f"ended with status {exited.code} after {exited.restarts} restarts and is not started again"
                       f"{_on(host)}", f"read {log_of(host, exited.name)}; mend the cause and start again", exited.last_lines)  # fmt: skip


def log_of(host: Client | None, name: str) -> str:
    """Where people find what a process last wrote."""
    if host is not None and host.directory:
        return f"{host.directory}/logs/{name}.log on host {host.name}"
    return f"logs/{name}.log in the run directory"


def _on(host: Client) -> str:
    return f" on host {host.name}" if host.directory else ""


def _goes_on_without(crank: Crank, host: Client, process: Process | None, exited: ProcessExited) -> bool:
    """Whether the run can do without this role on this host: then it is not given it again until the host is started anew."""
    state = crank.state
    if process is None:
        return False
    role = process.role
    elsewhere = any(role in offer.roles for offer in _offers(state) if offer.name != host.name)
    alive = any(client.role == role and client.connected and client.host != host.name for client in state.clients.values())
    if not elsewhere and not alive:
        return False
    host.unfit[role] = exited.last_lines[-1][:UNFIT_MAX] if exited.last_lines else f"status {exited.code}"
    crank.note("host_unfit", host=host.name, role=role, process=exited.name, code=exited.code, why=host.unfit[role])
    process.host, process.slots = "", ()
    settle(crank)
    return True


def give_up(crank: Crank) -> None:
    """A role that the run needs, all of whose hosts are gone and that may run on no other, ends the run once it was waited for."""
    state = crank.state
    if _is_ending(state):
        return
    for role in STAGES:
        mine = [process for process in state.processes.values() if process.role == role]
        if mine and all(process.host and is_orphan(state, process, crank.now) for process in mine):
            gone = max((state.clients[process.host] for process in mine), key=lambda host: host.since)
            if crank.now - gone.since > state.settings.return_s:
                _lost_for_good(crank, mine[0], gone)


def _lost_for_good(crank: Crank, process: Process, host: Client) -> None:
    bound = process.role in crank.state.settings.head_roles
    why = "it runs only where the broker's run directory is, and no other host reaches that" if bound else "no other host may run it"
    mend = (
        "start a host agent where the run directory is" if bound else "start a host that may run it"
    ) + f" (tidemill host), or {host.name} again, and go on with --resume"
    crank.fail_run(process.name, f"its host {host.name} is gone ({host.lost}) and did not come back within "
                   f"{crank.state.settings.return_s:g} s; {why}", mend)  # fmt: skip


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
    peers.on_lost(crank, client)
