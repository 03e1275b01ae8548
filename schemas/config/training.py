"""Sections that say what is learnt and when: `[schedule]`, `[algorithm]`, `[sampling]`, `[evaluation]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.config.section import AtLeastOne, Fraction, NotNegative, Section, not_built

Decay = Annotated[float, Field(ge=0, lt=1)]


class ScheduleConfig(Section):
    """`[schedule]`: how many tickets, in which order, and when what they bring is trained."""

    kind: Annotated[Literal["async", "sync"], not_built("pipelined", instead="use 'async' or 'sync'")] = "async"
    """`async`: training and sampling go on side by side, within `max_lag`; `sync`: a round is sampled, then trained."""
    max_lag: NotNegative = 2
    """Versions that may pass between the sampling of a token and its training; `sync` always holds it at 0."""
    stale: Annotated[Literal["mask"], not_built("drop", "wait", instead="use 'mask'")] = "mask"
    """What befalls tokens older than `max_lag` at the step's plan: `mask` takes their loss, the denominator stays."""
    groups_per_step: AtLeastOne = 16
    """Groups in one optimizer step."""
    members: AtLeastOne = 8
    """Members that play the task of one group."""
    steps: AtLeastOne = 24
    """Optimizer steps after which the run ends."""
    kv: Annotated[Literal["keep"], not_built("recompute", "drain", instead="use 'keep'")] = "keep"
    """A live session's KV when new weights arrive: `keep` goes on with it, and records which version computed it."""
    drop_uniform: bool = True
    """Drops groups whose rewards are all equal before the reference pass is paid for: their advantages are zero."""
    max_refills: Annotated[float, Field(ge=0, le=1e6)] = 0.5
    """Groups that replace dropped ones, at most, in multiples of `groups_per_step`; then a step takes what it has."""
    min_members: AtLeastOne = 2
    """Members that have to come through for a group to be trained without the rest."""

    @property
    def lag_bound(self) -> int:
        """Versions of lag that the schedule admits: `max_lag`, or 0 under `sync`."""
        return 0 if self.kind == "sync" else self.max_lag


class AlgorithmConfig(Section):
    """`[algorithm]`: loss and optimizer (AdamW; GRPO as in DeepSeekMath, clip-higher and token mean as in DAPO)."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 5e-4
    """Step size of AdamW after warm-up."""
    learning_rate_end: Fraction = 1.0
    """Share of the learning rate that is left at the run's last step; it falls linearly from the first. 1: constant."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.95)
    """Decay of AdamW's running mean and running square."""
    weight_decay: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Decoupled weight decay of AdamW, on matrices only."""
    warmup_steps: NotNegative = 0
    """Optimizer steps over which the learning rate rises linearly from zero."""
    gradient_clip: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Norm to which the gradient of a step is cut."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is clipped below 1 - `clip_low`."""
    clip_high: Annotated[float, Field(gt=0, le=1e9)] = 0.28
    """The probability ratio is clipped above 1 + `clip_high`."""
    kl_coefficient: Annotated[float, Field(ge=0, le=1e6)] = 0.001
    """Weight of the KL divergence to the reference in the loss; 0: no reference pass, and no reference process."""
    advantage: Literal["grpo"] = "grpo"
    """`grpo`: reward minus the group's mean, over the group's standard deviation."""
    aggregation: Literal["token_mean"] = "token_mean"
    """`token_mean`: every trained token of the step weighs the same, whatever episode it stands in."""


class SamplingConfig(Section):
    """`[sampling]`: how train turns are sampled."""

    temperature: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Divides the logits before the softmax."""
    top_p: Fraction = 1.0
    """Keeps the likeliest tokens that together reach this probability; 1 keeps all."""
    top_k: NotNegative = 0
    """Keeps this many of the likeliest tokens; 0 keeps all."""
    max_turn_tokens: AtLeastOne = 24
    """Tokens that the policy may say in one turn, evaluation included."""


class EvaluationConfig(Section):
    """`[evaluation]`: problems that are never trained on, played by the same loop."""

    problems: AtLeastOne = 500
    """Held-out problems that one evaluation plays, one member each."""
    at_start: bool = True
    """Evaluates the starting weights before the first train ticket."""
    at_end: bool = True
    """Evaluates the last version after the last step."""
    temperature: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Temperature of eval turns; 0 picks the likeliest token."""
