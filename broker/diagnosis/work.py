"""Rules about work: what is held too long, what nobody takes, what the trainer waits for, what failed."""

from __future__ import annotations

from collections.abc import Iterator

from broker.core import evaluations, groups, issue, plans
from broker.core.state import Lease, Phase, Queued, Stand
from broker.diagnosis.scene import Scene, Seen, seconds, usual
from broker.waits import waits
from schemas.edges import EDGES, Delivery, Role

AT_WORK = {
    "tickets": "reset of the environment",
    "actions": "step function of the environment",
    "turns": "generation",
    "episodes": "verifier",
    "scored": "pass of the reference model",
    "versions": "verification",
}
"""What a process does with a record of each queue."""
RECENT_S = 60.0
RECENT_LETTERS = 3
"""So many dead letters within `RECENT_S` are a fault, not bad luck."""
THROUGH = (Stand.SCORED, Stand.REFERENCING, Stand.READY)


def failed(scene: Scene) -> Iterator[Seen]:
    """The run is given up."""
    failure = scene.state.failure
    if failure is not None:
        last = f"; its last line: {failure.last_lines[-1]}" if failure.last_lines else ""
        yield Seen(what=f"the run has failed: {failure.stage}: {failure.reason}{last}", subject=failure.stage, advice=failure.advice)


def ending(scene: Scene) -> Iterator[Seen]:
    """It is on its way out, and waits for nobody."""
    if scene.state.phase in (Phase.CLOSING, Phase.CLOSED):
        yield Seen(what=f"the run is {scene.state.phase.value}: {scene.state.stop_reason or 'its steps are done'}")


def disk_full(scene: Scene) -> Iterator[Seen]:
    """Nothing can be journaled, so nothing may happen."""
    if scene.state.disk_full:
        where = scene.state.run_directory
        yield Seen(
            what=f"the disk is full, or the quota of the journal: {where} cannot take more, and nothing new begins before it can",
            since_s=scene.stalled_s,
            advice="free space there, or raise broker.journal_quota_bytes; with room the broker goes on by itself",
        )


def restarted(scene: Scene) -> Iterator[Seen]:
    """A broker that came back gives its clients time to say hello."""
    state = scene.state
    away = [client.name for client in state.clients.values() if not client.connected]
    if state.restarted_at is not None and away:
        since_s = scene.now - state.restarted_at
        yield Seen(
            what=f"the broker came back {seconds(since_s)} ago and waits up to {seconds(state.settings.grace_s)} for {', '.join(away)}",
            since_s=since_s,
        )


def no_credit(scene: Scene) -> Iterator[Seen]:
    """Records wait, consumers are there, and none of them lets any come."""
    state = scene.state
    for name, queue in state.queues.items():
        first = next(iter(queue.back), None) or next(iter(queue.ready), None)
        if first is None or EDGES[name].delivery not in (Delivery.FAIR, Delivery.PLACED):
            continue
        consumers = [client for role in EDGES[name].consumers for client in scene.working(role)]
        since_s = scene.now - state.messages[first].put_at
        if consumers and since_s > scene.patience_s and not any(client.windows.get(name, 0) for client in consumers):
            names = ", ".join(client.name for client in consumers)
            yield Seen(
                what=f"{names} gives no credit for {name} (window 0): {len(queue.ready) + len(queue.back)} wait since {seconds(since_s)}",
                since_s=since_s,
                subject=consumers[0].name,
                advice="a stage gives credit once it can work; see its log",
            )


def straggler(scene: Scene) -> Iterator[Seen]:
    """All that is late belongs to one session, and the rest of its group is through."""
    tickets = {scene.ticket_of(lease) for lease in scene.overdue}
    ticket = scene.state.tickets.get(next(iter(tickets))) if len(tickets) == 1 else None
    group = scene.state.groups.get(ticket.group) if ticket is not None else None
    if ticket is None or group is None or len(group.members) < 2:
        return
    rest = [scene.state.tickets[member] for member in group.members if member != ticket.id]
    if all(other.stand in THROUGH for other in rest):
        lease = scene.overdue[0]
        since_s = scene.now - lease.granted_at
        yield Seen(
            what=f"group {group.id} misses member {ticket.member}: {_session(scene, lease)} is with {lease.client}, "
            f"whose {AT_WORK[lease.queue]} has not answered for {seconds(since_s)}; the other {len(rest)} are through",
            since_s=since_s,
            subject=lease.client,
            advice=f"see logs/{lease.client}.log; at its deadline the record goes to another",
        )


def last_member(scene: Scene) -> Iterator[Seen]:
    """The trainer waits for a group of which one member still plays, at its own pace."""
    state = scene.state
    if not state.trainer.idle or len(groups.ready(state)) >= state.settings.groups_per_step:
        return
    for group in state.groups.values():
        members = [state.tickets[member] for member in group.members]
        late = [ticket for ticket in members if ticket.stand not in THROUGH]
        lease = state.leases.get(state.messages[late[0].message].lease or 0) if len(late) == 1 and len(members) > 1 else None
        if lease is not None and scene.now - lease.granted_at > scene.patience_s:
            since_s = scene.now - lease.granted_at
            yield Seen(
                what=f"group {group.id} waits for its last member: {_session(scene, lease)} plays on {lease.client} "
                f"since {seconds(since_s)}",
                since_s=since_s,
                subject=lease.client,
            )


def overdue(scene: Scene) -> Iterator[Seen]:
    """Per process and queue: what has not been answered for much longer than is usual."""
    held: dict[tuple[str, str], list[Lease]] = {}
    for lease in scene.overdue:
        held.setdefault((lease.client, lease.queue), []).append(lease)
    for (client, queue), leases in held.items():
        since_s = scene.now - leases[0].granted_at
        many = f"{len(leases)} records, the oldest " if len(leases) > 1 else ""
        waiting = scene.state.clients[client].waiting
        says = f"; it says: {waiting}" if waiting else ""
        yield Seen(
            what=f"{client}: the {AT_WORK[queue]} has not answered for {seconds(since_s)}{usual(scene.state.queues[queue].service_s)}, "
            f"{many}{_session(scene, leases[0])}{says}",
            since_s=since_s,
            subject=client,
            advice=f"see logs/{client}.log; deadlines are stages.env.*_deadline_s, stages.reward.timeout_s and broker.lease_s",
        )


def _session(scene: Scene, lease: Lease) -> str:
    message: Queued = scene.state.messages[lease.message]
    ticket = scene.state.tickets.get(message.header.ticket or 0)
    if ticket is None:
        return f"version {message.header.newest_version}"
    turn = "" if message.header.turn is None else f", turn {message.header.turn}"
    return f"ticket {ticket.id} (group {ticket.group}, attempt {ticket.attempt}{turn})"


def step_late(scene: Scene) -> Iterator[Seen]:
    """The trainer has a plan and does not vote. One that waits for its slot is not to blame."""
    state = scene.state
    trainer = next(iter(scene.working(Role.ACTOR_TRAIN)), None)
    step = next((each for each in state.steps.values() if each.sent and not each.committed), None)
    if trainer is None or step is None or any(g.client == trainer.name and g.granted_at is None for g in state.grants.values()):
        return
    since_s, usual_s = scene.now - step.planned_at, _usual_step_s(scene)
    if since_s > scene.late_after_s(usual_s):
        says = f"; it says: {trainer.waiting}" if trainer.waiting else ""
        yield Seen(
            what=f"{trainer.name} computes step {step.step} since {seconds(since_s)}{usual(usual_s)} and has not voted{says}",
            since_s=since_s,
            subject=trainer.name,
            advice=f"see logs/{trainer.name}.log",
        )


def _usual_step_s(scene: Scene) -> float | None:
    state = scene.state
    if not state.trainer.step or state.last_step_at is None or state.first_train_at is None:
        return None
    return (state.last_step_at - state.first_train_at) / state.trainer.step


def step_voided(scene: Scene) -> Iterator[Seen]:
    """A plan failed its vote and is tried again."""
    for step in scene.state.steps.values():
        if step.voids and not step.committed:
            yield Seen(
                what=f"step {step.step} failed its vote {step.voids} times and is planned again",
                since_s=scene.now - step.planned_at,
                subject=Role.ACTOR_TRAIN,
                advice="the run ends at the third time: see the trainer's log",
            )


def budget_full(scene: Scene) -> Iterator[Seen]:
    """No room for another group, and the trainer waits for one."""
    state = scene.state
    needed = issue.ticket_bytes(state) * state.settings.members
    charged, budget = state.ledger.charged, state.settings.budget_bytes
    if state.trainer.idle and charged + needed > budget and state.phase is Phase.RUNNING:
        yield Seen(
            what=f"the budget is full: {charged} of {budget} bytes are charged by {len(state.tickets)} tickets, a group needs {needed}",
            since_s=scene.stalled_s,
            advice="raise broker.budget_bytes",
        )


def letters_grow(scene: Scene) -> Iterator[Seen]:
    """Records are given up one after the other."""
    recent = [letter for letter in scene.state.dead.values() if scene.now - letter.at <= RECENT_S]
    if len(recent) >= RECENT_LETTERS:
        last = recent[-1]
        yield Seen(
            what=f"dead letters grow: {len(recent)} in the last {RECENT_S:.0f} s, {len(scene.state.dead)} in all; "
            f"the last on {last.queue}, ticket {last.header.ticket}: {last.cause}",
            since_s=scene.now - recent[0].at,
            subject=last.history[-1].client if last.history else "",
            advice="tidemill dead list, dead show ID, dead retry ID",
        )


def starved(scene: Scene) -> Iterator[Seen]:
    """The trainer is idle for want of groups, and nothing above says why."""
    state = scene.state
    trainer = plans.trainer_client(state)
    if trainer is None or not state.trainer.idle or not scene.stalled or state.trainer.step >= state.settings.steps:
        return
    open_one = evaluations.open_one(state)
    if open_one is not None and state.first_train_at is None:
        return
    playing = sum(1 for ticket in state.tickets.values() if ticket.stand is Stand.PLAYING)
    ready, wanted = len(groups.ready(state)), state.settings.groups_per_step
    yield Seen(
        what=f"{trainer.name} starves: {ready} of {wanted} groups are ready, {playing} sessions play",
        since_s=scene.stalled_s,
        subject=trainer.name,
        advice="the wait graph below says where the sessions are",
    )


def unexplained(scene: Scene) -> Iterator[Seen]:
    """Nothing moves, and no rule says why: the first of the waits."""
    if scene.stalled:
        said = waits(scene.state, scene.now) or ["no process says what it waits for"]
        yield Seen(what=f"nothing moved for {seconds(scene.stalled_s)}: {said[0]}", since_s=scene.stalled_s)
