"""Life of a run: what happens next, looked at after every event.

| phase | next | when |
|---|---|---|
| starting | running | a replica has a receipt for the first version |
| running | finishing | the last step is committed and its version published (or there was none to make) |
| finishing | closing | the last evaluation is done |
| starting, running, finishing | closing | a stop was asked for, or the run failed |
| closing | closed | all that was in flight has ended, the stages have gone or their time is up |
| closing, closed | starting | a stopped run is started again on its directory |
"""

from __future__ import annotations

from broker.core import evaluations, groups, issue, ledger, plans, sessions, versions
from broker.core.actions import EndRun
from broker.core.crank import Crank
from broker.core.settings import STOP_DRAIN_S
from broker.core.state import CLOSED, CLOSING, FINISHING, RUNNING, STARTING, Phase, State
from schemas.edges import Role
from schemas.errors import InvariantError
from schemas.messages import Drain, StopProcess

ARROWS: dict[Phase, frozenset[Phase]] = {
    STARTING: frozenset({RUNNING, CLOSING}),
    RUNNING: frozenset({FINISHING, CLOSING}),
    FINISHING: frozenset({CLOSING}),
    CLOSING: frozenset({CLOSED, STARTING}),
    CLOSED: frozenset({STARTING}),
}

STAGES_GO_S = 3.0
"""How long stages have to end by themselves once all is drained."""


def enter(crank: Crank, phase: Phase) -> None:
    """Moves the run along one arrow."""
    state = crank.state
    if phase not in ARROWS[state.phase]:
        raise InvariantError(f"run: no way from {state.phase} to {phase}")
    crank.note("phase", old=state.phase.value, new=phase.value)
    state.phase = phase
    crank.progressed()


def advance(crank: Crank) -> None:
    """Takes every step that the state allows now."""
    state = crank.state
    crank.settle()
    if (state.failure is not None or state.stop_reason is not None) and state.phase not in (CLOSING, CLOSED):
        _begin_closing(crank)
    if state.phase is STARTING:
        _leave_starting(crank)
    if state.evaluations and state.phase in (RUNNING, FINISHING):
        evaluations.feed(crank)
    if crank.offer_due:
        versions.offer_all(crank)
    if state.phase is RUNNING:
        _run(crank)
    if state.phase is FINISHING:
        _finish(crank)
    if state.phase is CLOSING:
        _close(crank)


def _leave_starting(crank: Crank) -> None:
    state = crank.state
    if crank.index.newest is None:
        return
    enter(crank, RUNNING)
    if state.settings.evaluate_at_start and not state.evaluations:
        evaluations.start(crank, versions.in_use(state) or 0)


def _run(crank: Crank) -> None:
    state = crank.state
    if not _eval_tickets_waiting(state):
        issue.admit_training(crank)
    if crank.plan_due:
        plans.advance(crank)
    if state.trainer.step >= state.settings.steps and state.trainer.idle:
        enter(crank, FINISHING)


def _eval_tickets_waiting(state: State) -> bool:
    """Held-out problems are asked first; training tickets follow once the last of them has an env."""
    evaluation = evaluations.open_one(state)
    if evaluation is None:
        return False
    return evaluation.issued < evaluation.problems or bool(state.queues["tickets"].ready or state.queues["tickets"].back)


def _finish(crank: Crank) -> None:
    state = crank.state
    last = state.trainer.step
    if state.settings.evaluate_at_end and evaluations.of_version(state, last) is None:
        if evaluations.open_one(state) is None and versions.in_use(state) == last:
            _drop_training(crank)
            evaluations.start(crank, last)
        else:
            versions.offer_all(crank)
        return
    if evaluations.open_one(state) is None and all(step.committed for step in state.steps.values()):
        _begin_closing(crank)


def _drop_training(crank: Crank) -> None:
    """No step is left that could train these."""
    for group in [group for group in crank.state.groups.values() if group.purpose == "train" and group.step is None]:
        groups.drop(crank, group, "run_end")


def _begin_closing(crank: Crank) -> None:
    state = crank.state
    enter(crank, CLOSING)
    in_hand = STOP_DRAIN_S if state.stop_reason is not None else state.settings.drain_s
    state.closing_deadline = crank.now + (0.0 if state.failure is not None else in_hand)


def _close(crank: Crank) -> None:
    state = crank.state
    deadline = state.closing_deadline or crank.now
    unsettled = [step for step in state.steps.values() if state.stop_reason is not None or not step.committed]
    if unsettled and plans.trainer_client(state) is not None and crank.now < deadline:
        return
    _end_tickets(crank)
    if not any(client.draining for client in state.clients.values()):
        _send_home(crank)
        state.closing_deadline = crank.now + STAGES_GO_S
        deadline = state.closing_deadline
    left = [client for client in state.clients.values() if client.connected and client.role != Role.OBSERVER]
    if not left or crank.now >= deadline:
        enter(crank, CLOSED)
        crank.out.append(EndRun(state.failure))


def _end_tickets(crank: Crank) -> None:
    """Every ticket still in flight ends `dropped(run_end)`.

    A committed step without its checkpoint counts as trained: it will be made again from the journal if the run goes on.
    """
    state = crank.state
    for ticket in list(state.tickets.values()):
        if ticket.stand.value == "trained":
            crank.forget(ticket.record)
            ledger.train_finally(crank, ticket)
            continue
        sessions.withdraw(crank, ticket)
        ledger.drop(crank, ticket, "run_end")
    for evaluation in state.evaluations:
        evaluation.open.clear()
        evaluation.issued = evaluation.problems
        evaluation.ended_at = evaluation.ended_at if evaluation.ended_at is not None else crank.now
    state.groups.clear()
    state.steps.clear()


def _send_home(crank: Crank) -> None:
    for client in crank.state.clients.values():
        if not client.connected or (client.role == Role.OBSERVER and not client.blobs):
            continue
        client.draining = True
        crank.touched.add(client.name)
        crank.send(client.name, StopProcess() if client.role == Role.HOST else Drain(reason="run_end"))


def reopen(crank: Crank) -> None:
    """A run that was stopped, or that failed, is started again on its directory: new groups, from its last checkpoint.

    Whether a failed run may go on is for people to say (`--resume`, once the cause is mended); who starts a broker on it has said so.
    """
    state = crank.state
    if state.phase not in (CLOSING, CLOSED) or (state.stop_reason is None and state.failure is None):
        return
    enter(crank, STARTING)
    state.stop_reason = state.closing_deadline = state.failure = None
    state.ledger.failed_in_a_row = 0
    for client in state.clients.values():
        client.stats.pop("install_failures", None)
    for process in state.processes.values():
        process.exits = 0
    state.groups_admitted = state.trainer.step * state.settings.groups_per_step + groups.untrained(state)
    state.evaluations = [evaluation for evaluation in state.evaluations if evaluation.scored + evaluation.failed >= evaluation.problems]
    for client in state.clients.values():
        client.draining = False
