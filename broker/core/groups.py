"""Groups: from admission to the verdict of the grouping policy, and to a step plan."""

from __future__ import annotations

from broker.core import evaluations, ledger, sessions
from broker.core.crank import Crank
from broker.core.index import index_of
from broker.core.state import READY, REFERENCING, SCORED, Group, Queued, State, Ticket
from broker.policy import grouping
from schemas.header import Header
from schemas.messages import DropReason


def put_scored(crank: Crank, header: Header) -> int:
    """Reward's answer for one member. Returns the message id, 0 where the record is needed by nobody (evaluation)."""
    ticket = crank.state.tickets[header.ticket or 0]
    ledger.move(ticket, SCORED)
    ticket.reward = header.reward
    crank.state.ledger.failed_in_a_row = 0
    if ticket.purpose == "eval":
        evaluations.scored(crank, ticket)
        return 0
    message = Queued(id=crank.new_message(), queue="scored", header=header, put_at=crank.now)
    crank.state.messages[message.id] = message
    ticket.record = message.id
    _judge_if_finished(crank, crank.state.groups[ticket.group])
    return message.id


def member_ended(crank: Crank, ticket: Ticket) -> None:
    """A member ended without a reward: the rest go on, or the group is broken."""
    if ticket.purpose == "eval":
        evaluations.failed(crank, ticket)
        return
    group = crank.state.groups.get(ticket.group)
    if group is None:
        return
    crank.index.doubt(group)
    group.members.remove(ticket.id)
    if not group.judged:
        _judge_if_finished(crank, group)
    elif not group.members:
        remove(crank, group)


def _judge_if_finished(crank: Crank, group: Group) -> None:
    state = crank.state
    tickets = [state.tickets[member] for member in group.members]
    if group.judged or any(ticket.stand is not SCORED for ticket in tickets):
        return
    settings = state.settings
    view = grouping.GroupView(
        rewards=tuple(ticket.reward or 0.0 for ticket in tickets), min_members=settings.min_members,
        drop_uniform=settings.drop_uniform, refills=state.trainer.refills,
        max_refills=int(settings.max_refills * settings.groups_per_step),
    )  # fmt: skip
    verdict = crank.policies.judge(view)
    crank.note("grouping", group=group.id, verdict=verdict.value, members=len(tickets), reward=sum(view.rewards), refills=view.refills)
    if verdict is grouping.Verdict.KEEP:
        _keep(crank, group, tickets)
    elif verdict is grouping.Verdict.DROP_AND_REFILL:
        state.trainer.refills += 1
        drop(crank, group, "no_spread")
    else:
        drop(crank, group, "group_broken")


def _keep(crank: Crank, group: Group, tickets: list[Ticket]) -> None:
    crank.index.doubt(group)
    group.judged = True
    for ticket in tickets:
        message = crank.state.messages[ticket.record or 0]
        message.put_at = crank.now
        if crank.state.settings.reference_pass:
            ledger.move(ticket, REFERENCING)
            crank.enqueue(message)
        else:
            ledger.move(ticket, READY)
            message.queue = "samples"
            crank.plan_due = True


def drop(crank: Crank, group: Group, reason: DropReason) -> None:
    """Ends all members of a group `dropped(reason)`; another group may take its place."""
    for member in list(group.members):
        ticket = crank.state.tickets[member]
        sessions.withdraw(crank, ticket)
        ledger.drop(crank, ticket, reason)
    group.members.clear()
    remove(crank, group)


def remove(crank: Crank, group: Group) -> None:
    """The group is gone untrained: admission may bring another."""
    crank.state.groups.pop(group.id, None)
    crank.state.groups_admitted -= 1


def put_sample(crank: Crank, header: Header) -> int:
    """Reference's answer: the member is ready for a step plan."""
    ticket = crank.state.tickets[header.ticket or 0]
    ledger.move(ticket, READY)
    message = Queued(id=crank.new_message(), queue="samples", header=header, put_at=crank.now)
    crank.state.messages[message.id] = message
    ticket.record = message.id
    crank.index.doubt(crank.state.groups[ticket.group])
    crank.plan_due = True
    crank.progressed()
    return message.id


def untrained(state: State) -> int:
    """Training groups in flight that no committed step holds."""
    committed = {group for step in state.steps.values() if step.committed for group in step.groups}
    return sum(1 for group in state.groups.values() if group.purpose == "train" and group.id not in committed)


def ready(state: State) -> list[Group]:
    """Groups all of whose members are ready and unplanned (the pond), oldest first."""
    return [state.groups[number] for number in index_of(state).ready_groups(state)]
