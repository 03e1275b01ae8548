"""Lost histories: what becomes of what was made with versions that a restarted trainer does not have, or made again with
another result.

Those versions are installed nowhere any more, and everything they sampled ends `dropped(lost_version)`, planned or not,
unless a committed step holds it. New weights under the same numbers come with the trainer's next versions.
"""

from __future__ import annotations

from broker.core import groups, leases, ledger
from broker.core.crank import Crank
from broker.core.state import Group, Stand, State, Step
from schemas.edges import Role
from schemas.messages import Abort


def lose_from(crank: Crank, number: int) -> None:
    """Versions from `number` on belong to a history that is over; a new lineage begins."""
    trainer = crank.state.trainer
    trainer.lineage += 1
    crank.note("lineage", lineage=trainer.lineage, version=number)
    _forget_versions(crank, number)
    for step in [step for step in crank.state.steps.values() if not step.committed and _is_lost(crank.state, step.tickets, number)]:
        unplan(crank, crank.state.steps.pop(step.step))
    for group in list(crank.state.groups.values()):
        if group.purpose == "train" and group.step is None and _is_lost(crank.state, group.members, number):
            groups.drop(crank, group, "lost_version")
    _interrupt_replicas(crank, number)
    crank.plan_due = True


def _is_lost(state: State, tickets: list[int] | tuple[int, ...], number: int) -> bool:
    """Some of these were sampled, or are pinned to be, by a lost version."""
    found = (state.tickets[ticket] for ticket in tickets)
    return any(max(ticket.newest or 0, ticket.version or 0) >= number for ticket in found)


def _forget_versions(crank: Crank, number: int) -> None:
    state = crank.state
    for lost in [known for known in state.installs if known >= number]:
        crank.forget(state.installs.pop(lost).message)
    for lost in [known for known in state.trainer.digests if known >= number]:
        del state.trainer.digests[lost]


def _interrupt_replicas(crank: Crank, number: int) -> None:
    """A replica with a lost version gets no turn until its next receipt, and those it works on are sampled anew."""
    state = crank.state
    for client in state.clients.values():
        if client.role != Role.ROLLOUT or max(client.installed or 0, client.offered or 0) < number:
            continue
        client.installed = client.offered = None
        crank.touched.add(client.name)
        for lease in [lease.id for lease in state.leases.values() if lease.client == client.name and lease.queue == "turns"]:
            crank.send(client.name, Abort(lease=lease))
            leases.lose(crank, lease, "lost_version")


def unplan(crank: Crank, step: Step) -> None:
    """Takes back a plan, which has left the state: what it would have trained is ready again, what it has trained is final."""
    for group_id in step.groups:
        group = crank.state.groups.get(group_id)
        if group is not None:
            _unplan_group(crank, group, committed=step.committed)
    for ticket_id in step.tickets:
        ticket = crank.state.tickets[ticket_id]
        if step.committed:
            crank.forget(ticket.record)
            ledger.train_finally(crank, ticket)
        else:
            ledger.move(ticket, Stand.READY)


def _unplan_group(crank: Crank, group: Group, *, committed: bool) -> None:
    if committed:
        crank.state.groups.pop(group.id)
    else:
        group.step = None
        crank.index.doubt(group)
