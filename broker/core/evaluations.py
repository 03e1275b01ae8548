"""Evaluations: one pass over the held-out problems, pinned to one version; their tickets never train.

While one is open, replicas keep (or, after a restart, get) its version: see `versions.target`.
"""

from __future__ import annotations

from broker.core import issue, ledger
from broker.core.crank import Crank
from broker.core.state import Evaluation, State, Ticket


def open_one(state: State) -> Evaluation | None:
    """The evaluation in progress."""
    if state.evaluations and state.evaluations[-1].ended_at is None:
        return state.evaluations[-1]
    return None


def of_version(state: State, version: int) -> Evaluation | None:
    """The evaluation of a version, in progress or done."""
    return next((evaluation for evaluation in state.evaluations if evaluation.version == version), None)


def start(crank: Crank, version: int) -> None:
    """Opens an evaluation pinned to `version`; `feed` issues its tickets."""
    evaluation = Evaluation(version=version, problems=crank.state.settings.evaluation_problems, started_at=crank.now)
    crank.state.evaluations.append(evaluation)
    crank.note("evaluation_started", version=version, problems=evaluation.problems)
    feed(crank)


def feed(crank: Crank) -> None:
    """Issues one ticket a held-out problem, as far as the budget has room."""
    state = crank.state
    evaluation = open_one(state)
    if evaluation is None or state.disk_full:
        return
    while evaluation.issued < evaluation.problems and state.ledger.charged + issue.ticket_bytes(state) <= state.settings.budget_bytes:
        group = issue.group(crank, task_index=evaluation.issued, purpose="eval", members=1, version=evaluation.version)
        evaluation.open.extend(group.members)
        evaluation.issued += 1


def scored(crank: Crank, ticket: Ticket) -> None:
    """A held-out problem has its reward."""
    evaluation = _of(crank.state, ticket)
    evaluation.scored += 1
    reward = ticket.reward or 0.0
    evaluation.reward_sum += reward
    evaluation.graded = evaluation.graded or reward not in (0.0, 1.0)
    _close_member(crank, evaluation, ticket)
    ledger.evaluated(crank, ticket)


def failed(crank: Crank, ticket: Ticket) -> None:
    """A held-out problem failed (its ticket has ended): it counts as not solved."""
    evaluation = _of(crank.state, ticket)
    evaluation.failed += 1
    _close_member(crank, evaluation, ticket)


def _of(state: State, ticket: Ticket) -> Evaluation:
    return next(evaluation for evaluation in state.evaluations if evaluation.version == ticket.version)


def _close_member(crank: Crank, evaluation: Evaluation, ticket: Ticket) -> None:
    evaluation.open.remove(ticket.id)
    crank.state.groups.pop(ticket.group, None)
    if not evaluation.open and evaluation.issued == evaluation.problems:
        evaluation.ended_at = crank.now
        crank.offer_due = crank.plan_due = True
        measured = accuracy(evaluation)
        found = {} if measured is None else {"accuracy": measured}
        counts = {"problems": evaluation.problems, "failed": evaluation.failed}
        crank.note("evaluation_done", version=evaluation.version, **found, **counts)


def measure(evaluation: Evaluation) -> str:
    """What the mean of the rewards is called: the share of problems solved where each is 0 or 1."""
    return "mean reward" if evaluation.graded else "accuracy"


def accuracy(evaluation: Evaluation) -> float | None:
    """Mean reward over the problems that have ended; failed ones count 0. None where none has a reward: that measures no policy."""
    if not evaluation.scored:
        return None
    return evaluation.reward_sum / (evaluation.scored + evaluation.failed)
