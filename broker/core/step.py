"""The core's one door: `step(state, event, now)` changes the state and returns what to do about it.

Pure: no socket, clock, file, log or chance. The same code runs live, under a virtual clock, and over a recorded
journal.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core import access, clients, commits, damage, dead, delivery, fleet, grants, leases, lifecycle, pauses, plans, versions, waiting
from broker.core.actions import Action, EndRun, Reply
from broker.core.crank import Crank
from broker.core.events import Damaged, DiskFull, DiskOk, Event, Malformed, Received, Restarted, Revoked, Started, Tick
from broker.core.settings import settings_from_config
from broker.core.state import CLOSED, CLOSING, Client, State
from broker.policy.registry import DEFAULT, Policies
from schemas import messages as wire
from schemas.edges import EDGES, SLOT_ROLES, Role


def begin(started: Started, now: float) -> State:
    """The state of a run that has just been asked for."""
    return State(settings=settings_from_config(started.config), config=started.config, run_directory=started.run_directory, started_at=now,
                 progress_at=now)  # fmt: skip


def step(state: State, event: Event, now: float, policies: Policies = DEFAULT) -> list[Action]:
    """Hands one event to the state; returns the actions it causes, in order. `now`: seconds of the broker's clock, never falling."""
    crank = Crank(state, now, policies)
    if type(event) is Received:  # nine of ten events
        _received(crank, event)
    elif isinstance(event, Malformed):
        _malformed(crank, event)
    elif isinstance(event, Tick):
        _tick(crank, event.late_s)
    elif isinstance(event, Restarted):
        _restarted(crank)
    elif isinstance(event, DiskFull | DiskOk):
        state.disk_full = isinstance(event, DiskFull)
        crank.note("disk_full" if state.disk_full else "disk_ok")
    elif isinstance(event, Damaged):
        damage.give_up(crank, event.messages)
    elif isinstance(event, Revoked):
        clients.on_revoked(crank, event.key)
    lifecycle.advance(crank)
    delivery.serve(crank)
    waiting.settle(crank)
    return crank.out


def next_wake(state: State, now: float) -> float:
    """When the core wants a Tick at the latest, if no event comes before."""
    return now + (0.1 if state.phase is CLOSING else min(1.0, state.settings.heartbeat_s))


def _received(crank: Crank, event: Received) -> None:
    message = event.message
    if type(message) is wire.Commit:
        _commit(crank, event.sender, message)
        return
    problem = access.forbidden(message, event.roles) if event.roles is not None else None
    if problem is not None:
        crank.note("forbidden", key=event.key, detail=problem)
        crank.out.append(Reply(wire.Refuse(reason="forbidden", detail=problem, fatal=True)))
        return
    if isinstance(message, wire.Hello):
        clients.on_hello(crank, event.sender, message, event.key)
        return
    if isinstance(message, wire.StopAsked):
        _stop(crank, message)
        return
    if isinstance(message, wire.DeadRetry):
        dead.on_retry(crank, message)
        return
    client = clients.sender_of(crank, event.sender)
    if client is None:
        return
    clients.heard(crank, client)
    if isinstance(message, wire.Numbered) and not commits.takes_number(crank, client, message.epoch, message.seq):
        return
    problem = _out_of_role(client, message)
    if problem is not None:
        crank.note("message_refused", client=client.name, detail=problem)
        crank.send(client.name, wire.Refuse(reason="role", detail=problem, seq=getattr(message, "seq", None)))
        return
    if isinstance(message, wire.Numbered) and not isinstance(message, wire.Credit):
        client.progress_at = crank.now
    _HANDLERS[type(message)](crank, client, message)
    if isinstance(message, wire.Numbered):
        crank.send(client.name, wire.Committed(seq=message.seq))


def _commit(crank: Crank, sender: str, commit: wire.Commit) -> None:
    """The short way: a commit is of a client, whose key was asked for with its hello."""
    client = clients.sender_of(crank, sender)
    if client is None:
        return
    client.last_seen = crank.now
    if client.suspect:
        clients.heard(crank, client)
    if commits.takes_number(crank, client, commit.epoch, commit.seq):
        client.progress_at = crank.now
        commits.on_commit(crank, client, commit)


SAID_BY: dict[type, frozenset[str]] = {
    wire.Voted: frozenset({Role.ACTOR_TRAIN}),
    wire.CheckpointSaved: frozenset({Role.ACTOR_TRAIN}),
    wire.Receipt: frozenset({Role.ROLLOUT, Role.REFERENCE}),
    wire.InstallFailed: frozenset({Role.ROLLOUT, Role.REFERENCE}),
    wire.ProcessExited: frozenset({Role.HOST}),
    wire.GrantAsked: frozenset(SLOT_ROLES),
}
"""Messages that mean something from these roles alone; what a commit may put stands in `schemas/edges.py`."""


def _out_of_role(client: Client, message: wire.ClientMessage) -> str | None:
    """Why this client may not say this, if it may not."""
    if client.role not in SAID_BY.get(type(message), (client.role,)):
        return f"a {client.role} does not say {type(message).__name__}"
    if isinstance(message, wire.Credit) and (message.queue not in EDGES or client.role not in EDGES[message.queue].consumers):
        return f"a {client.role} does not consume {message.queue!r}"
    return None


def _malformed(crank: Crank, event: Malformed) -> None:
    client = clients.sender_of(crank, event.sender)
    if client is not None:
        commits.refuse_unread(crank, client, event.epoch, event.seq, event.detail)


def _stop(crank: Crank, asked: wire.StopAsked) -> None:
    """No hello needed: who may reach the socket may end the run."""
    if crank.state.stop_reason is None:
        crank.state.stop_reason = asked.reason or "stop asked"
        crank.note("stop_asked", reason=crank.state.stop_reason)


def _credit(crank: Crank, client: Client, credit: wire.Credit) -> None:
    client.windows[credit.queue] = credit.window
    crank.touched.add(client.name)
    crank.dirty.add(credit.queue)


def _drained(crank: Crank, client: Client, _: wire.Drained) -> None:
    crank.note("drained", client=client.name)


_HANDLERS: dict[type, Callable[..., None]] = {
    wire.Heartbeat: clients.on_heartbeat,
    wire.Bye: clients.on_bye,
    wire.Credit: _credit,
    wire.Voted: plans.on_voted,
    wire.CheckpointSaved: lambda crank, client, message: plans.on_checkpoint(crank, message),
    wire.Receipt: versions.on_receipt,
    wire.InstallFailed: versions.on_install_failed,
    wire.GrantAsked: grants.on_asked,
    wire.GrantReleased: grants.on_released,
    wire.Drained: _drained,
    wire.ProcessExited: fleet.on_exit,
}


def _tick(crank: Crank, late_s: float) -> None:
    pauses.forgive(crank, late_s)
    clients.give_up_lost(crank)
    clients.watch(crank)
    fleet.settle(crank)
    fleet.give_up(crank)
    leases.expire(crank)
    grants.expire(crank)
    versions.expire(crank)
    crank.plan_due = True


def _restarted(crank: Crank) -> None:
    """Nobody is known to be there; leases live on until the grace is over."""
    state = crank.state
    state.restarted_at = crank.now
    for client in state.clients.values():
        client.connected = client.ready = False
        client.last_seen = crank.now
        crank.touched.add(client.name)
    for lease in state.leases.values():
        lease.deadline = max(lease.deadline, crank.now + state.settings.grace_s)
    lifecycle.reopen(crank)
    if state.phase is CLOSED:  # it ended, and its process was killed before it could leave
        crank.out.append(EndRun(state.failure))
