"""The loss of one step, as a sum over trained tokens over one denominator that is known before the first micro-batch.

    loss = sum over trained tokens of  [ -min(u A, clip(u; 1 - low, 1 + high) A)  +  beta KL ]  /  token_denominator

u = pi / mu is the current policy over the behaviour policy that sampled the token (PPO with the behaviour policy as
proximal policy: Schulman et al. 2017; clip-higher and token mean after DAPO, Yu et al. 2025). The denominator is
the plan's, counted before any mask was dropped: neither the split into micro-batches nor a dropped mask changes the
scale.

The KL term has the value of k3 = exp(-d) + d - 1, d = log pi - log rho, which is never negative and of low
variance, and the gradient of k2 = d^2 / 2, whose expectation under pi is that of KL(pi || rho); the gradient of k3
itself would be that of the opposite divergence (Schulman 2020; Tang and Munos 2025). It is not weighted by u: lag
is bounded to a few versions, the coefficient is small, and a weight would hand the term the variance of u.

Log-ratios are clamped to +-20 before they are exponentiated. Works in the dtype of its arguments. All tensors are
flat, [N].
"""

# ruff: noqa: N803 - axes are upper-case suffixes

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_MAX = 20.0
"""exp(20) is 5e8: far outside every clip, and still finite when summed over a batch in float32."""


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    clip_low: float
    clip_high: float
    kl_coefficient: float
    aggregation: str = "token_mean"
    """How token losses become one: a name in `AGGREGATIONS`."""


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Trained tokens of a micro-batch, flat. Only `logprobs` carries a gradient."""

    logprobs: Tensor
    """Under the current weights."""
    behaviour: Tensor
    """Under the weights that sampled them."""
    reference: Tensor | None
    """Under the frozen model; None where no KL is asked for."""
    advantages: Tensor


@dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """Per token [N]. `policy` and `kl` carry gradients."""

    policy: Tensor
    kl: Tensor
    clipped_low: Tensor
    """bool: A < 0 and u below the clip: no gradient."""
    clipped_high: Tensor
    """bool: A > 0 and u above the clip: no gradient."""


def token_losses(batch: TokenBatch, settings: LossSettings) -> TokenLosses:
    log_ratio = (batch.logprobs - batch.behaviour).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    ratio, advantages = log_ratio.exp(), batch.advantages
    low, high = 1.0 - settings.clip_low, 1.0 + settings.clip_high
    return TokenLosses(
        policy=-torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages),
        kl=kl_to_reference(batch.logprobs, batch.reference),
        clipped_low=(advantages < 0) & (ratio < low),
        clipped_high=(advantages > 0) & (ratio > high),
    )


def kl_to_reference(logprobs_N: Tensor, reference_N: Tensor | None) -> Tensor:
    """Value of k3, gradient of k2 (straight-through); see the module's head."""
    if reference_N is None:
        return torch.zeros_like(logprobs_N)
    difference = (logprobs_N - reference_N).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    k2 = difference.square() / 2
    with torch.no_grad():
        k3 = torch.expm1(-difference) + difference
    return k3 + (k2 - k2.detach())


def token_mean(losses: Tensor, token_denominator: int) -> Tensor:
    """Every token of the step weighs the same (DAPO). The denominator is the plan's: splitting into micro-batches changes nothing."""
    return losses.sum() / token_denominator


AGGREGATIONS = {"token_mean": token_mean}
"""By the name that `algorithm.aggregation` takes."""


def step_loss(losses: TokenLosses, settings: LossSettings, token_denominator: int) -> Tensor:
    """Scalar: this micro-batch's part of the step's loss."""
    return AGGREGATIONS[settings.aggregation](losses.policy + settings.kl_coefficient * losses.kl, token_denominator)
