"""One optimizer step on its way from plan to weights: what the stage has in hand.

    PLANNED ──grant──► COMPUTING ──all batches──► VOTED ──StepCommitted──► COMMITTED ──applied──► (gone)
       ▲                  │                         │
       └──────fence───────┘                         └──PlanVoided──► (gone)

Owns the samples of a plan and what was computed on them. Does not touch weights, the broker or the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from schemas.codec import Frame, check_header, decode_record
from schemas.errors import InvariantError, WireError
from schemas.messages import Plan
from schemas.records import Sample
from stages.actor_train.batching import TrainingSequence, micro_batches, sampled_lags, training_sequences
from stages.actor_train.core.metrics import TokenSums, lag_metrics, plan_metrics


class Phase(StrEnum):
    PLANNED = "planned"
    COMPUTING = "computing"
    VOTED = "voted"
    COMMITTED = "committed"


ARROWS = {
    Phase.PLANNED: {Phase.COMPUTING},
    Phase.COMPUTING: {Phase.PLANNED, Phase.VOTED},
    Phase.VOTED: {Phase.COMMITTED},
    Phase.COMMITTED: set(),
}


@dataclass(kw_only=True)
class StepInHand:
    plan: Plan
    batches: list[list[TrainingSequence]]
    metrics: dict[str, float]
    phase: Phase = Phase.PLANNED
    ok: bool = False
    """The vote; only read once voted."""
    answered_early: bool = False
    """The broker had recorded the commit before: it is applied as soon as the gradient is there again."""
    next_batch: int = 0
    sums: TokenSums = field(default_factory=TokenSums)
    since: float = 0.0
    """When this phase began."""

    def move(self, phase: Phase, now: float) -> float:
        """To the next phase.

        Returns the seconds spent in the last. Raises InvariantError for an arrow that is not drawn above.
        """
        if phase not in ARROWS[self.phase]:
            raise InvariantError(f"step {self.plan.step} cannot go from {self.phase} to {phase}")
        spent, self.phase, self.since = now - self.since, phase, now
        return spent

    def spend(self, name: str, seconds: float) -> None:
        self.metrics[name] = self.metrics.get(name, 0.0) + seconds

    @property
    def computed(self) -> bool:
        return self.next_batch >= len(self.batches)


def step_in_hand(plan: Plan, frames: Sequence[Frame], *, micro_batch_tokens: int, with_reference: bool, now: float) -> StepInHand:
    """Decodes and sorts what a plan brought. Raises WireError (damaged) or InvariantError (does not fit together)."""
    if plan.token_denominator < 1:
        raise InvariantError(f"plan of step {plan.step} has a denominator of {plan.token_denominator} tokens")
    samples = plan_samples(plan, frames)
    sequences = training_sequences(plan, samples, with_reference)
    return StepInHand(
        plan=plan,
        batches=micro_batches(sequences, micro_batch_tokens),
        metrics=plan_metrics(samples, plan.rewards) | lag_metrics(*sampled_lags(sequences)),
        since=now,
    )


def plan_samples(plan: Plan, frames: Sequence[Frame]) -> list[Sample]:
    """The plan's samples; their frames follow each other in the order of the headers. Raises WireError."""
    samples, at = [], 0
    for header in plan.samples:
        own = frames[at : at + len(header.frames)]
        check_header(header, own)
        samples.append(decode_record(Sample, own))
        at += len(header.frames)
    if at != len(frames):
        raise WireError(f"plan of step {plan.step}: {len(frames)} frames, its {len(samples)} samples have {at}")
    return samples
