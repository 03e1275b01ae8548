"""What a simulated run came to, read once at its end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from broker.core.evaluations import accuracy
from broker.core.ledger import in_flight
from broker.core.state import Evaluation, Failed, Ledger, State

if TYPE_CHECKING:
    from tools.sim.world import World


class Evaluated(Struct, frozen=True):
    """One evaluation."""

    version: int
    problems: int
    accuracy: float | None
    seconds: float


class Result(Struct, frozen=True, kw_only=True):
    """Times are virtual seconds unless said otherwise."""

    steps: int
    phase: str
    failure: Failed | None
    ledger: Ledger
    in_flight: int
    lags: dict[int, int]
    """Trained tokens by lag in versions."""
    masked_tokens: int
    """Tokens of trained samples that were too old to count."""
    trainer_idle_share: float
    """Of the time between the first plan and the last step."""
    first_plan_at: float | None
    last_step_at: float | None
    ended_at: float
    evaluations: tuple[Evaluated, ...]
    trained: dict[int, tuple[int, ...]]
    """Tickets by step, as last applied."""
    decisions: dict[str, int]
    """How often each kind of decision was noted."""
    refusals: dict[str, int]
    deaths: dict[str, int]
    events: int
    core_seconds: float
    """Processor seconds inside the core."""
    state: State


def result_of(world: World) -> Result:
    """Reads the world after its run."""
    state, disk, driver = world.driver.state, world.disk, world.driver
    applied = {step: trainings[-1] for step, trainings in sorted(disk.trained.items())}
    lags: Counter[int] = Counter()
    for training in applied.values():
        lags += training.lags
    window = (disk.last_step_at or 0.0) - (disk.first_plan_at or 0.0)
    return Result(
        steps=state.trainer.step, phase=state.phase.value, failure=driver.failure, ledger=state.ledger, in_flight=in_flight(state),
        lags=dict(sorted(lags.items())), masked_tokens=sum(training.masked for training in applied.values()),
        trainer_idle_share=max(0.0, 1.0 - disk.busy_s / window) if window > 0 else 0.0, first_plan_at=disk.first_plan_at,
        last_step_at=disk.last_step_at, ended_at=world.now,
        evaluations=tuple(evaluated(evaluation, world.now) for evaluation in state.evaluations),
        trained={step: training.tickets for step, training in applied.items()}, decisions=dict(driver.notes),
        refusals=dict(world.refusals), deaths=dict(world.deaths), events=driver.events, core_seconds=driver.core_seconds, state=state,
    )  # fmt: skip


def evaluated(evaluation: Evaluation, now: float) -> Evaluated:
    """One evaluation, as far as it has come."""
    ended_at = evaluation.ended_at if evaluation.ended_at is not None else now
    return Evaluated(evaluation.version, evaluation.problems, accuracy(evaluation), ended_at - evaluation.started_at)
