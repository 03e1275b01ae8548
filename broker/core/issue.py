"""Issuing: the only place where tickets and groups come into being, and where room is charged."""

from __future__ import annotations

from broker.core.actions import Store
from broker.core.crank import Crank
from broker.core.settings import BYTES_PER_TOKEN
from broker.core.state import Group, Queued, State, Ticket
from broker.policy.admission import AdmissionView
from schemas import records
from schemas.codec import encode_record, make_header

_MIX = 0x9E3779B97F4A7C15


def ticket_bytes(state: State) -> int:
    """Room of one ticket: the longest episode, in bytes on its way through the loop."""
    return state.settings.max_episode_tokens * BYTES_PER_TOKEN


def group(crank: Crank, *, task_index: int, purpose: str, members: int, version: int | None) -> Group:
    """Issues a group; its tickets enter their queue."""
    state = crank.state
    made = Group(id=state.next_group, task_index=task_index, purpose=purpose, members=[])
    state.next_group += 1
    state.groups[made.id] = made
    for member in range(members):
        made.members.append(ticket(crank, made, member, version).id)
    return made


def ticket(crank: Crank, group: Group, member: int, version: int | None) -> Ticket:
    """Issues one ticket and charges its room; the caller adds it to the group."""
    state = crank.state
    seed = _seed(state.settings.seed, group.purpose, group.task_index, version)
    body = records.Ticket(task_index=group.task_index, seed=seed)
    header = make_header(body, encode_record(body), pipeline=state.settings.pipeline, queue="tickets", ticket=state.next_ticket,
                         group=group.id, member=member, purpose=group.purpose)  # fmt: skip
    message = Queued(id=crank.new_message(), queue="tickets", header=header, put_at=crank.now)
    made = Ticket(id=state.next_ticket, group=group.id, member=member, purpose=group.purpose, message=message.id, version=version,
                  charged=ticket_bytes(state), issued_at=crank.now)  # fmt: skip
    state.next_ticket += 1
    state.tickets[made.id] = made
    state.ledger.issued += 1
    state.ledger.charged += made.charged
    crank.enqueue(message)
    crank.out.append(Store(message.id, header, body))
    return made


def _seed(run_seed: int, purpose: str, task_index: int, version: int | None) -> int:
    """Base of a group's sampling seeds (63 bits): the same for the same task of the same run; evaluations differ by version."""
    words = (run_seed + 1, 1 if purpose == "train" else 2, task_index + 1, (version or 0) + 1 if purpose == "eval" else 0)
    mixed = 0
    for word in words:
        mixed = ((mixed ^ word) * _MIX + (mixed >> 29)) & 0xFFFF_FFFF_FFFF_FFFF
        mixed ^= mixed >> 32
    return mixed >> 1


def admit_training(crank: Crank) -> None:
    """Admits as many training groups as the admission policy allows now. None while the disk is full: what is admitted already needs the
    room that is left."""
    state, index = crank.state, crank.index
    settings, trainer = state.settings, state.trainer
    asked = (trainer.step, index.newest, index.oldest, state.groups_admitted, state.ledger.charged)
    if state.disk_full or index.asked == asked:
        return
    view = AdmissionView(
        schedule=settings.schedule, committed_step=trainer.step, newest_in_use=index.newest,
        oldest_in_use=index.oldest, steps=settings.steps,
        groups_per_step=settings.groups_per_step, max_lag=settings.max_lag, admitted=state.groups_admitted,
        room_bytes=settings.budget_bytes - state.ledger.charged, group_bytes=settings.members * ticket_bytes(state),
    )  # fmt: skip
    decision = crank.policies.admit(view)
    if not decision.groups:
        index.asked = asked
        return
    crank.note("admission", groups=decision.groups, allowed=decision.allowed, admitted=view.admitted, bound=decision.reason)
    pinned = trainer.step if settings.schedule == "sync" else None
    for _ in range(decision.groups):
        group(crank, task_index=_next_task(state), purpose="train", members=settings.members, version=pinned)
        state.groups_admitted += 1


def _next_task(state: State) -> int:
    """A task that is to be played again, or else the next."""
    if state.retry_tasks:
        return state.retry_tasks.pop(0)
    state.next_task += 1
    return state.next_task - 1
