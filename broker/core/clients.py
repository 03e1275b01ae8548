"""Clients: hello, liveness, goodbye.

A process is known by its name; each start of it is an incarnation with an epoch of its own. A newer incarnation fences
the older. A client that the broker does not know, lost, or has not heard since its own restart is told `hello_first`.
"""

from __future__ import annotations

from broker.core import commits, fleet, grants, leases, neighbours, peers, plans, versions
from broker.core.actions import Reply
from broker.core.crank import Crank
from broker.core.state import Client, Phase, State
from schemas.edges import EDGES, Role
from schemas.lock import schema_fingerprint
from schemas.messages import PROTOCOL_VERSION, Abort, Bye, CloseSession, Drain, Heartbeat, Hello, Refuse, StopProcess, Welcome

CLIENTS_MAX = 20_000
"""Names remembered by a run: the largest fleet and its restarts many times over, and a bound for whoever invents names."""
FENCED_MAX = 64
"""Earlier incarnations remembered; one that is older has been told long ago."""
STATS_MAX = 1_000
"""Gauges kept of one client; a host reports some for each of its processes."""
TIMES = ("busy_seconds", "wait_seconds", "cpu_seconds")
"""Gauges that are summed over a name's incarnations."""
WAITING_MAX = 500
"""Characters kept of what a client says it waits for."""


def sender_of(crank: Crank, sender: str) -> Client | None:
    """The client behind a routing id, or None after telling it why it is not one."""
    name, _, incarnation = sender.rpartition("/")
    client = crank.state.clients.get(name)
    if client is not None and client.connected and client.incarnation == incarnation:
        return client
    if client is not None and client.incarnation != incarnation:
        crank.out.append(Reply(Refuse(reason="fenced", detail=f"a newer process named {name} is at work", fatal=True)))
        return None
    crank.out.append(Reply(Refuse(reason="hello_first")))
    return None


def heard(crank: Crank, client: Client) -> None:
    """Any message shows that a client is there; one that was suspected gets work again."""
    client.last_seen = crank.now
    if client.suspect:
        client.suspect = False
        crank.dirty.update(client.windows)
        crank.touched.add(client.name)


def on_hello(crank: Crank, sender: str, hello: Hello, key: str = "") -> None:
    """Registers a client, or takes it back after a restart of either side. `key`: the one it came in by."""
    refusal = _refusal(crank.state, sender, hello) or _of_another_key(crank.state, hello, key)
    refusal = refusal or neighbours.refusal(crank, hello, another=is_another)
    if refusal is not None:
        crank.out.append(Reply(refusal))
        return
    known = crank.state.clients.get(hello.name)
    repeated = known is not None and not is_another(known, hello) and known.connected and not known.ready and not hello.ready
    fresh = known is None or is_another(known, hello) or not known.welcomed
    client = _register(crank, hello)
    client.key = key
    crank.touched.add(client.name)
    stale = _settle_leases(crank, client, hello)
    _update(crank, client, hello)
    if not repeated:  # a process that asks again and again whether files are served is no sign that something moves
        crank.progressed()
    peers.on_hello(crank, client, hello)
    commits.refuse_again(crank, client, hello.next_seq)
    crank.send(client.name, Welcome(
        epoch=client.epoch, next_seq=client.next_seq, config=crank.state.config, run_directory=crank.state.run_directory, stale=stale,
        heartbeat_s=crank.state.settings.heartbeat_s, sources=peers.sources(crank.state, client), hello=hello.number,
    ))  # fmt: skip
    if hello.ready:
        _on_ready(crank, client, hello, fresh=fresh)
        client.welcomed = True
    if crank.state.phase in (Phase.CLOSING, Phase.CLOSED) and client.role != Role.OBSERVER:
        client.draining = True
        crank.send(client.name, StopProcess() if client.role == Role.HOST else Drain(reason="run_end"))


def _refusal(state: State, sender: str, hello: Hello) -> Refuse | None:
    if hello.protocol != PROTOCOL_VERSION:
        return Refuse(
            reason="protocol", detail=f"client speaks {hello.protocol}, broker {PROTOCOL_VERSION}: install the same version", fatal=True
        )
    if hello.schema != schema_fingerprint():
        return Refuse(reason="schema", detail=f"client's schema.lock is {hello.schema}, broker's {schema_fingerprint()}: use one version",
                      fatal=True)  # fmt: skip
    if hello.pipeline not in ("", state.settings.pipeline):
        return Refuse(reason="pipeline", detail=f"this broker carries {state.settings.pipeline!r}, not {hello.pipeline!r}", fatal=True)
    if sender != f"{hello.name}/{hello.incarnation}":
        return Refuse(reason="name", detail=f"routing id {sender!r} is not '{hello.name}/{hello.incarnation}'", fatal=True)
    unknown = [queue for queue in hello.windows if queue not in EDGES or hello.role not in EDGES[queue].consumers]
    if unknown:
        return Refuse(reason="role", detail=f"{hello.role} does not consume {', '.join(unknown)}", fatal=True)
    known = state.clients.get(hello.name)
    if known is None and len(state.clients) >= CLIENTS_MAX:
        return Refuse(reason="crowded", detail=f"this run has seen {CLIENTS_MAX} names of processes, and remembers no more", fatal=True)
    if known is not None and {hello.incarnation, _twin(hello.incarnation, hello.pid)}.intersection(known.fenced):
        return Refuse(reason="fenced", detail=f"a newer process named {hello.name} is at work", fatal=True)
    if known is not None and known.role != hello.role:
        return Refuse(reason="name", detail=f"{hello.name!r} is a {known.role}; choose another name", fatal=True)
    others = [c.name for c in state.clients.values() if c.role == Role.ACTOR_TRAIN and c.connected and c.name != hello.name]
    if hello.role == Role.ACTOR_TRAIN and others:
        return Refuse(reason="role", detail=f"{others[0]} trains already; this version has one rank", fatal=True)
    return None


def _of_another_key(state: State, hello: Hello, key: str) -> Refuse | None:
    """A name that is at work, or may come back after our restart, stays with the key it came in by."""
    known = state.clients.get(hello.name)
    if known is None or known.key == key or not (known.connected or (known.key and state.restarted_at is not None)):
        return None
    return Refuse(reason="forbidden", detail=f"{hello.name!r} came in by another key; choose another name", fatal=True)


def on_revoked(crank: Crank, key: str) -> None:
    """Everybody who came in by this key is told, and gone."""
    for client in list(crank.state.clients.values()):
        if client.key == key and client.connected:
            crank.send(client.name, Refuse(reason="forbidden", detail=f"the key {key!r} was revoked", fatal=True))
            fleet.lose_client(crank, client, f"its key {key} was revoked")
            peers.on_revoked(crank, client)


def is_another(known: Client, hello: Hello) -> bool:
    """Whether this hello is from another process than the one we know by that name; two may have the same incarnation by mistake."""
    twin = known.pid and hello.pid and known.pid != hello.pid
    return known.incarnation != hello.incarnation or bool(twin)


def _twin(incarnation: str, pid: int) -> str:
    """How the older of two processes with one incarnation is remembered: ZeroMQ hands the routing id to and fro between them."""
    return f"{incarnation}#{pid}"


def _register(crank: Crank, hello: Hello) -> Client:
    state = crank.state
    client = state.clients.get(hello.name)
    if client is None:
        client = Client(name=hello.name, role=hello.role, incarnation=hello.incarnation, epoch=1, since=crank.now)
        state.clients[hello.name] = client
    elif is_another(client, hello):
        fleet.lose_client(crank, client, "replaced")
        client.fenced.append(client.incarnation if client.incarnation != hello.incarnation else _twin(client.incarnation, client.pid))
        del client.fenced[:-FENCED_MAX]
        client.incarnation, client.epoch, client.next_seq, client.since = hello.incarnation, client.epoch + 1, 1, crank.now
        _keep_times(client)
        client.stats, client.welcomed, client.put_again, client.unfit, client.waiting = {}, False, [], {}, ""
    client.connected, client.suspect, client.gap_at, client.lost = True, False, 0, ""
    return client


def _keep_times(client: Client) -> None:
    """What an incarnation spent stays spent: the next one counts from 0."""
    for name in TIMES:
        client.spent[name] = client.spent.get(name, 0.0) + client.stats.get(name, 0.0)


def _settle_leases(crank: Crank, client: Client, hello: Hello) -> tuple[int, ...]:
    """Leases that the client still holds go on; others of it go back; those it holds in error are returned."""
    mine = set(crank.index.leases_of(client.name))
    # Each is told: its delivery may have crossed the hello, and would be worked on for nobody.
    for lease in sorted(mine.difference(hello.holds)):
        crank.send(client.name, Abort(lease=lease))
        leases.lose(crank, lease, "not held")
    return tuple(lease for lease in hello.holds if lease not in mine)


def _update(crank: Crank, client: Client, hello: Hello) -> None:
    process = crank.state.processes.get(client.name)
    client.last_seen = crank.now
    if client.ready != hello.ready:
        client.since = crank.now
    client.ready, client.windows = hello.ready, dict(hello.windows)
    client.host, client.pid, client.user_code = hello.host, hello.pid, dict(hello.user_code)
    client.directory, client.place, client.runs = hello.directory, hello.place, hello.roles
    client.slots = hello.slots or (process.slots if process is not None and hello.host else ())
    client.installed, client.offered = hello.installed, None
    client.draining = False
    crank.dirty.update(hello.windows, ("actions",))


def _on_ready(crank: Crank, client: Client, hello: Hello, *, fresh: bool) -> None:
    """`fresh`: the first ready hello of a process; else it is back after a cut, and what it missed is ordered again."""
    crank.note("client_ready", client=client.name, role=client.role, epoch=client.epoch, fresh=int(fresh))
    if fresh:
        grants.drop_of(crank, client.name)
    else:
        grants.remind(crank, client, hello.grants)
    if client.role == Role.HOST:
        fleet.on_host_ready(crank, client, hello.running)
    elif client.role == Role.ACTOR_TRAIN and fresh:
        plans.on_trainer_new(crank, hello.resume_step or 0)
    elif client.role == Role.ACTOR_TRAIN:
        plans.on_trainer_back(crank, client, hello.resume_step or 0, hello.step_in_hand)
    elif client.role == Role.REFERENCE:
        versions.offer(crank, client)
    elif client.role == Role.ROLLOUT:
        versions.offer(crank, client)
        _close_forgotten(crank, client, hello.sessions)


def _close_forgotten(crank: Crank, client: Client, held: tuple[tuple[int, int], ...]) -> None:
    """Sessions that ended while the replica was cut off: it may forget them."""
    for ticket, attempt in held:
        session = crank.state.sessions.get(ticket)
        if session is None or session.attempt != attempt or session.replica != client.name:
            crank.send(client.name, CloseSession(ticket=ticket, attempt=attempt))


def on_heartbeat(crank: Crank, client: Client, beat: Heartbeat) -> None:
    """Renews the client, and mends a hole in its numbers that is still open."""
    client.waiting = beat.waiting[:WAITING_MAX]
    if len(client.stats.keys() | beat.stats.keys()) <= STATS_MAX:
        client.stats.update(beat.stats)
    if client.gap_at == client.next_seq:
        commits.ask_resend(crank, client)


def on_bye(crank: Crank, client: Client, bye: Bye) -> None:
    """A client ends on its own."""
    fleet.lose_client(crank, client, f"{fleet.BYE} {bye.reason}".strip())
    fleet.settle(crank)


START_SECONDS = 600.0
"""A process that loads its model cannot heartbeat; after this long it will not come any more."""
USER_CODE_START_SECONDS = 180.0
"""The same for roles that load a person's code and no model."""


def _start_seconds(role: str) -> float:
    return USER_CODE_START_SECONDS if role in (Role.ENV, Role.REWARD) else START_SECONDS


def watch(crank: Crank) -> None:
    """Suspects and then gives up silent clients; those that still start are given longer, and then end the run."""
    settings = crank.state.settings
    for client in list(crank.state.clients.values()):
        silence = crank.now - client.last_seen
        if not client.connected or (not client.ready and silence < _start_seconds(client.role)):
            continue
        if not client.ready and client.name in crank.state.processes and crank.state.phase not in (Phase.CLOSING, Phase.CLOSED):
            _never_ready(crank, client)
        if silence > settings.dead_s:
            waited = f", its last word was that it waits {client.waiting}" if client.waiting else ""
            fleet.lose_client(crank, client, f"silent for {silence:.1f} s{waited}")
        elif silence > settings.suspect_s and not client.suspect:
            client.suspect = True
            crank.touched.add(client.name)
            crank.note("client_suspect", client=client.name, silence=silence)


def _never_ready(crank: Crank, client: Client) -> None:
    """A process that a host runs hangs before its first work: a restart would hang again."""
    what = "the code that it loads blocks" if client.role in (Role.ENV, Role.REWARD) else "loading its model hangs"
    crank.fail_run(
        client.name,
        f"did not become ready within {_start_seconds(client.role):.0f} s of its start",
        f"{what}: look into {fleet.log_of(crank.state.clients.get(client.host), client.name)}, mend the cause and start again",
    )


def give_up_lost(crank: Crank) -> None:
    """After the grace that follows a restart: leases of clients that did not come back are lost."""
    state = crank.state
    if state.restarted_at is None or crank.now < state.restarted_at + state.settings.grace_s:
        return
    state.restarted_at = None
    for client in list(state.clients.values()):
        if not client.connected:
            fleet.lose_client(crank, client, "not back after the broker's restart")
