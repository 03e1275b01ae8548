"""A plan's samples as micro-batches: masks, advantages and padding, ready for the forward pass.

Owns the order of computing, which is a function of the plan alone: the same plan gives the same sums in the same
order, and so, on the same machine, the same weights.
"""

# ruff: noqa: N806 - axes are upper-case suffixes

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.errors import InvariantError
from schemas.header import Header
from schemas.messages import Plan
from schemas.records import Sample
from stages.actor_train.core.advantages import Spread, advantage_of, spreads_by_group
from stages.actor_train.core.masking import only_version, trained_mask, versions_by_token
from stages.model.packing import PaddedBatch, Segment, columns, packed_by_length, padded, segments_of


@dataclass(frozen=True, kw_only=True)
class TrainingSequence:
    """One segment of a sample with all that its tokens' losses need. Vectors are [n], one entry a token."""

    segment: Segment
    trained: np.ndarray
    """bool: sampled, and by a version that is recent enough."""
    lags: np.ndarray
    """int64: current version less the version that sampled the token; only read where sampled."""
    behaviour: np.ndarray
    """float32"""
    reference: np.ndarray | None
    """float32, None where no KL is asked for."""
    advantage: float
    exact: bool
    """The current weights alone sampled and cached the episode: recomputed log-probs must equal the behaviour's."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Scoring input, and the flat values [N] of the tokens under `scoring.wanted`, row by row."""

    scoring: PaddedBatch
    behaviour: Tensor
    reference: Tensor | None
    advantages: Tensor
    exact: Tensor
    """bool"""


def training_sequences(plan: Plan, samples: Sequence[Sample], with_reference: bool) -> list[TrainingSequence]:
    """In the order of the plan. Raises InvariantError where plan and samples do not fit each other."""
    spreads = spreads_by_group(plan.rewards)
    return [
        sequence
        for header, sample in zip(plan.samples, samples, strict=True)
        for sequence in _sequences(plan, header, sample, spreads, with_reference)
    ]


def _sequences(plan: Plan, header: Header, sample: Sample, spreads: Mapping[int, Spread], with_reference: bool) -> list[TrainingSequence]:
    length = len(sample.tokens)
    _check_lengths(header, sample, with_reference)
    versions = versions_by_token(sample.sample_spans, length)
    trained = trained_mask(sample.loss_mask.astype(bool), versions, plan.oldest_allowed_version)
    current = plan.step - 1
    return [
        TrainingSequence(
            segment=segment,
            trained=trained[segment.start : segment.end],
            lags=current - versions[segment.start : segment.end],
            behaviour=sample.logprobs[segment.start : segment.end],
            reference=sample.ref_logprobs[segment.start : segment.end] if with_reference else None,
            advantage=advantage_of(spreads, header.group, sample.reward),
            exact=only_version(sample.sample_spans, sample.kv_spans) == current,
        )
        for segment in segments_of(sample)
    ]


def _check_lengths(header: Header, sample: Sample, with_reference: bool) -> None:
    vectors = {"loss_mask": sample.loss_mask, "logprobs": sample.logprobs}
    if with_reference:
        vectors["ref_logprobs"] = sample.ref_logprobs
    for name, vector in vectors.items():
        if len(vector) != len(sample.tokens):
            raise InvariantError(
                f"sample of ticket {header.ticket}: {len(vector)} {name} for {len(sample.tokens)} tokens"
                + ("; it has not passed the reference stage" if name == "ref_logprobs" and not len(vector) else "")
            )


def micro_batches(sequences: Sequence[TrainingSequence], micro_batch_tokens: int) -> list[list[TrainingSequence]]:
    """Length-sorted, under `micro_batch_tokens` padded tokens each; sequences without a trained token need no pass."""
    worth = [sequence for sequence in sequences if sequence.trained.any()]
    batches = packed_by_length([len(sequence.segment.tokens) for sequence in worth], micro_batch_tokens)
    return [[worth[index] for index in batch] for batch in batches]


def micro_batch(sequences: Sequence[TrainingSequence], device: torch.device | str) -> MicroBatch:
    scoring = padded([s.segment for s in sequences], [s.trained for s in sequences], device)
    longest = max(len(s.segment.tokens) for s in sequences)
    wanted = columns([s.trained for s in sequences], longest)
    tokens_B = wanted.sum(1)
    with_reference = [s.reference for s in sequences if s.reference is not None]

    def flat(vectors: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(columns(vectors, longest)[wanted]).to(device)

    return MicroBatch(
        scoring=scoring,
        behaviour=flat([s.behaviour for s in sequences]),
        reference=flat(with_reference) if with_reference else None,
        advantages=torch.tensor(np.repeat([s.advantage for s in sequences], tokens_B), dtype=torch.float32, device=device),
        exact=torch.tensor(np.repeat([s.exact for s in sequences], tokens_B), device=device),
    )


def sampled_lags(sequences: Sequence[TrainingSequence]) -> tuple[np.ndarray, np.ndarray]:
    """Of every sampled token of the step: its lag int64 [N], and whether it is trained bool [N]."""
    lags = [s.lags[s.segment.sampled] for s in sequences]
    trained = [s.trained[s.segment.sampled] for s in sequences]
    return (np.concatenate(lags), np.concatenate(trained)) if sequences else (np.zeros(0, np.int64), np.zeros(0, bool))
