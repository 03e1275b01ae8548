"""Step plans: which samples make which optimizer step, and the vote that commits it.

A plan is formed once `groups_per_step` groups are ready and the trainer is idle. This is the named check of the lag:
`oldest_allowed` rides with the plan, and tokens sampled by an older version lose their mask in the trainer. A committed
step's records stay until a checkpoint holds it; a trainer that comes back without it gets the recorded plans again, in
order, and the recorded answers.
"""

from __future__ import annotations

from broker.core import evaluations, groups, ledger, lineage
from broker.core.actions import Attachment, StepMetrics
from broker.core.crank import Crank
from broker.core.index import index_of
from broker.core.state import PLANNED, Client, Group, State, Step
from schemas.messages import CheckpointSaved, GroupRewards, Plan, PlanVoided, StepCommitted, Voted

MAX_VOIDS = 3
"""A plan that fails its vote so often will fail again: the run ends and says so."""


def trainer_client(state: State) -> Client | None:
    """The connected, ready trainer."""
    for name in index_of(state).trainers:
        client = state.clients[name]
        if client.connected and client.ready:
            return client
    return None


def advance(crank: Crank) -> None:
    """Sends the next recorded plan, or forms a new one, where the trainer is idle."""
    state = crank.state
    client = trainer_client(state)
    if client is None or not state.trainer.idle or client.draining:
        return
    waiting = next((step for _, step in sorted(state.steps.items()) if not step.sent), None)
    if waiting is None:
        waiting = _form(crank)
    if waiting is not None:
        _send(crank, client, waiting)


def _form(crank: Crank) -> Step | None:
    state = crank.state
    settings, trainer = state.settings, state.trainer
    if trainer.step >= settings.steps or state.stop_reason is not None or _evaluation_would_starve(state):
        return None
    pond = groups.ready(state)
    if len(pond) < settings.groups_per_step:
        return None
    step = _plan_of(crank, pond[: settings.groups_per_step])
    state.steps[step.step] = step
    trainer.refills = 0
    crank.note("step_planned", step=step.step, groups=len(step.groups), samples=len(step.samples), pond=len(pond),
               oldest_allowed=step.oldest_allowed, tokens=step.token_denominator)  # fmt: skip
    return step


def _evaluation_would_starve(state: State) -> bool:
    """Replicas stay at an open evaluation's version: training goes on up to `max_lag` beyond it."""
    evaluation = evaluations.open_one(state)
    return evaluation is not None and state.trainer.step - evaluation.version > _lag(state)


def _lag(state: State) -> int:
    return state.settings.max_lag if state.settings.schedule == "async" else 0


def _plan_of(crank: Crank, chosen: list[Group]) -> Step:
    state = crank.state
    number = state.trainer.step + 1
    tickets = [state.tickets[member] for group in chosen for member in group.members]
    for group in chosen:
        group.step = number
        crank.index.doubt(group)
    for ticket in tickets:
        ledger.move(ticket, PLANNED)
    return Step(
        step=number, lineage=state.trainer.lineage, groups=tuple(group.id for group in chosen),
        samples=tuple(ticket.record or 0 for ticket in tickets), tickets=tuple(ticket.id for ticket in tickets),
        rewards=tuple(
            GroupRewards(group=group.id, rewards=tuple(state.tickets[member].reward or 0.0 for member in group.members)) for group in chosen
        ),
        token_denominator=sum(ticket.trainable for ticket in tickets), oldest_allowed=max(0, number - 1 - _lag(state)),
        planned_at=crank.now,
    )  # fmt: skip


def _send(crank: Crank, client: Client, step: Step) -> None:
    state = crank.state
    step.sent = True
    state.trainer.idle = False
    plan = Plan(
        step=step.step, lineage=step.lineage, oldest_allowed_version=step.oldest_allowed, token_denominator=step.token_denominator,
        samples=tuple(state.messages[message].header for message in step.samples), rewards=step.rewards,
    )  # fmt: skip
    crank.send(client.name, plan, *(Attachment(message) for message in step.samples))
    crank.progressed()


def on_voted(crank: Crank, client: Client, vote: Voted) -> None:
    """A vote on a plan: commits it, or voids it and plans the same samples anew. A recorded answer is given again."""
    step = crank.state.steps.get(vote.step)
    if step is None:
        crank.note("vote_without_plan", step=vote.step)
        return
    if step.committed:
        crank.send(client.name, StepCommitted(step=step.step))
        return
    if not vote.ok:
        _void(crank, client, step, vote.reason)
        return
    _commit(crank, step, vote)
    crank.send(client.name, StepCommitted(step=step.step))


def _commit(crank: Crank, step: Step, vote: Voted) -> None:
    state = crank.state
    step.committed, step.committed_at = True, crank.now
    state.trainer.step = step.step
    state.last_step_at = crank.now
    state.ledger.trained_tokens += step.token_denominator
    for ticket_id in step.tickets:
        ledger.train_provisionally(crank, state.tickets[ticket_id])
    state.metrics = dict(vote.metrics)
    crank.note("step_committed", step=step.step, samples=len(step.samples), seconds=crank.now - step.planned_at)
    crank.progressed()


def _void(crank: Crank, client: Client, step: Step, reason: str) -> None:
    step.voids += 1
    step.sent = False
    crank.state.trainer.idle = True
    crank.plan_due = True
    crank.note("plan_voided", step=step.step, reason=reason, voids=step.voids)
    crank.send(client.name, PlanVoided(step=step.step))
    if step.voids >= MAX_VOIDS:
        crank.fail_run("actor-train", f"step {step.step} failed its vote {step.voids} times: {reason}",
                       "lower algorithm.learning_rate or look at the samples of this step")  # fmt: skip


def on_checkpoint(crank: Crank, saved: CheckpointSaved) -> None:
    """Steps up to the checkpoint are final: their records are needed no more."""
    state = crank.state
    state.trainer.checkpoint = max(state.trainer.checkpoint, saved.step)
    if saved.metrics:
        state.metrics.update(saved.metrics)
    step = state.steps.get(saved.step)
    if step is not None and step.committed:
        crank.out.append(StepMetrics(saved.step, _metrics(state, step)))
    for number in [number for number in state.steps if number <= saved.step and state.steps[number].committed]:
        _finish(crank, state.steps.pop(number))


def _metrics(state: State, step: Step) -> dict[str, float]:
    elapsed = (state.last_step_at or 0.0) - (state.first_train_at or 0.0)
    goodput = state.ledger.trained_tokens / elapsed if elapsed > 0 else 0.0
    installs, state.install_metrics = state.install_metrics, {}
    return {**state.metrics, **installs, "time/since_start_s": step.committed_at - state.started_at,
            "perf/goodput_tokens_per_second": goodput}  # fmt: skip


def _finish(crank: Crank, step: Step) -> None:
    for ticket_id in step.tickets:
        ticket = crank.state.tickets[ticket_id]
        crank.forget(ticket.record)
        ledger.train_finally(crank, ticket)
    for group in step.groups:
        crank.state.groups.pop(group, None)


def on_trainer_back(crank: Crank, client: Client, resume_step: int, in_hand: int | None) -> None:
    """The same trainer process said hello again: whatever was ordered and got lost is ordered again."""
    for step in crank.state.steps.values():
        if step.step == in_hand and step.committed:
            crank.send(client.name, StepCommitted(step=step.step))
        elif step.step == in_hand and not step.sent:
            crank.send(client.name, PlanVoided(step=step.step))
        elif step.step != in_hand and step.sent and step.step > resume_step:
            step.sent = False
            crank.state.trainer.idle = True
            crank.plan_due = True


def on_trainer_new(crank: Crank, resume_step: int) -> None:
    """A new trainer process came, with a checkpoint at `resume_step`: what it lacks will be planned again, as recorded."""
    state = crank.state
    trainer = state.trainer
    trainer.idle = False
    if resume_step > trainer.step:
        crank.fail_run("actor-train", f"its checkpoint is at step {resume_step}, the journal knows {trainer.step} steps only",
                       "checkpoints of another run lie here, or the journal has lost what made them; begin another")  # fmt: skip
        return
    if resume_step > trainer.checkpoint:
        on_checkpoint(crank, CheckpointSaved(step=resume_step))
    if any(number not in state.steps for number in range(resume_step + 1, trainer.step + 1)):
        _lose_steps(crank, resume_step)
    for step in state.steps.values():
        step.sent = False


def _lose_steps(crank: Crank, resume_step: int) -> None:
    """History goes on from an older checkpoint: the newest was damaged, or the run was stopped before it. What was final stays counted."""
    state, trainer = crank.state, crank.state.trainer
    crank.note("steps_lost", checkpoint=trainer.checkpoint, resumed=resume_step, committed=trainer.step)
    for number in list(state.steps):
        lineage.unplan(crank, state.steps.pop(number))
    state.groups_admitted -= (trainer.step - resume_step) * state.settings.groups_per_step
    trainer.step = trainer.checkpoint = resume_step
    lineage.lose_from(crank, resume_step + 1)
