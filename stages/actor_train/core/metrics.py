"""The numbers of one step: what the plan and its samples say, and what micro-batches add up to.

Names follow what users of other trainers know. Sums are added over micro-batches and divided once, so that a mean
over tokens is a mean over the step's tokens, however they were split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from schemas.messages import GroupRewards
from schemas.records import Sample

ONLY_PART = "reward"
"""The name of the part where a verifier gives one number."""


@dataclass(kw_only=True)
class TokenSums:
    """Sums over trained tokens; `exact_*` over those of episodes that the current weights alone sampled and cached."""

    tokens: float = 0.0
    loss: float = 0.0
    """Already over the step's denominator."""
    policy_loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    difference: float = 0.0
    """|recomputed - behaviour log-prob|"""
    exact_tokens: float = 0.0
    exact_difference: float = 0.0

    def add(self, other: TokenSums) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def token_metrics(sums: TokenSums, token_denominator: int) -> dict[str, float]:
    """Losses are over the denominator, as they were trained; all else is a mean over the tokens that were trained."""
    tokens = max(sums.tokens, 1.0)
    metrics = {
        "loss": sums.loss,
        "loss/policy": sums.policy_loss / token_denominator,
        "kl/reference": sums.kl / tokens,
        "entropy": sums.entropy / tokens,
        "clip_fraction/low": sums.clipped_low / tokens,
        "clip_fraction/high": sums.clipped_high / tokens,
        "tokens/trained": sums.tokens,
        "tokens/denominator": float(token_denominator),
        "mismatch/mean_abs_logprob_difference_all": sums.difference / tokens,
        "mismatch/tokens": sums.exact_tokens,
    }
    if sums.exact_tokens:
        metrics["mismatch/mean_abs_logprob_difference"] = sums.exact_difference / sums.exact_tokens
    return metrics


def plan_metrics(samples: Sequence[Sample], rewards: Sequence[GroupRewards]) -> dict[str, float]:
    """Of the plan's episodes; the reward is that of all members, trained or not."""
    all_rewards = np.concatenate([np.asarray(group.rewards, np.float64) for group in rewards]) if rewards else np.zeros(0)
    calls = [sample.tool_calls for sample in samples if sample.tool_calls is not None]
    metrics = {
        "reward/mean": _mean(all_rewards),
        "reward/std": float(all_rewards.std()) if all_rewards.size else 0.0,
        "samples": float(len(samples)),
        "seq_len/mean": _mean([len(sample.tokens) for sample in samples]),
        "is_truncated/mean": _mean([sample.truncated for sample in samples]),
        "near_ties": float(sum(sample.near_ties for sample in samples)),
    }
    # Nothing is said of what no episode tells: a 0 would look measured.
    return metrics | ({"tool_calls/mean": _mean(calls)} if calls else {}) | _part_means(samples)


def _part_means(samples: Sequence[Sample]) -> dict[str, float]:
    """`reward/<part>/mean` of each named part; of a verifier that gives one number there is nothing more to say."""
    parts: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.reward_parts.items():
            parts.setdefault(name, []).append(value)
    return {f"reward/{name}/mean": _mean(values) for name, values in parts.items()} if set(parts) != {ONLY_PART} else {}


def lag_metrics(lags: np.ndarray, trained: np.ndarray) -> dict[str, float]:
    """`lags` int [N].

    Versions between sampling and training, of every sampled token; `trained` bool [N]: kept its mask.
    """
    metrics = {"lag/mean": _mean(lags), "lag/max": float(lags.max()) if lags.size else 0.0}
    ages, counts = np.unique(lags[~trained], return_counts=True)
    metrics["tokens/masked"] = float(counts.sum())
    return metrics | {f"masked_tokens/lag_{age}": float(count) for age, count in zip(ages, counts, strict=True)}


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0
