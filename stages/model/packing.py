"""From samples to padded batches: what actor-train and reference both do before a forward pass.

Owns the choice of who shares a batch and the layout of one. Promises that every sequence lands in exactly one
batch, that the choice depends on lengths alone, and that what a batch holds of a sequence does not depend on its
neighbours. Knows no loss and no broker. Columns are those of `logprobs.py`: column t-1 belongs to token t.
"""

# ruff: noqa: N803, N806, N815 - axes are upper-case suffixes

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.errors import WireError
from schemas.records import Sample
from stages.model.logprobs import pad_kept


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One sequence of its own.

    A sample, or a piece of one whose context was cut. Positions count from its first token.
    """

    start: int
    """Where it begins in the sample."""
    tokens: np.ndarray
    """int32 [n]"""
    sampled: np.ndarray
    """bool [n], true on tokens that the policy sampled; never on the first."""
    temperature: float
    kept_ids: np.ndarray
    """int32, the kept ids of the sampled tokens end to end; empty where sampling was not restricted."""
    kept_counts: np.ndarray
    """int32, one for each sampled token, or empty."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


def segments_of(sample: Sample) -> list[Segment]:
    """The sequences of a sample. Raises WireError where mask, kept ids and segments do not fit each other."""
    sampled = sample.loss_mask.astype(bool)
    counts_T = _counts_by_token(sample, sampled)
    return [_segment(sample, sampled, counts_T, start, end) for start, end in sample.segments]


def _segment(sample: Sample, sampled_T: np.ndarray, counts_T: np.ndarray, start: int, end: int) -> Segment:
    if not 0 <= start < end <= len(sample.tokens):
        raise WireError(f"segment [{start}, {end}) lies outside a sample of {len(sample.tokens)} tokens")
    if sampled_T[start]:
        raise WireError(f"token {start} begins a sequence and is marked as sampled: nothing precedes it")
    ids = slice(int(counts_T[:start].sum()), int(counts_T[:end].sum()))
    mask = sampled_T[start:end]
    return Segment(
        start=start,
        tokens=sample.tokens[start:end],
        sampled=mask,
        temperature=sample.temperature,
        kept_ids=sample.kept_ids[ids],
        kept_counts=counts_T[start:end][mask] if sample.kept_counts.size else sample.kept_counts,
    )


def _counts_by_token(sample: Sample, sampled_T: np.ndarray) -> np.ndarray:
    """int32 [T]: how many ids were kept for each token; 0 where the policy did not sample it."""
    counts_T = np.zeros(len(sample.tokens), np.int32)
    if sample.kept_counts.size:
        if sample.kept_counts.size != sampled_T.sum() or sample.kept_counts.sum() != sample.kept_ids.size:
            raise WireError(
                f"{sample.kept_counts.size} kept counts over {sample.kept_ids.size} kept ids for {sampled_T.sum()} sampled tokens"
            )
        counts_T[sampled_T] = sample.kept_counts
    return counts_T


def packed_by_length(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices of the sequences of each batch, longest first: neighbours are of like length, so little is padding.

    A batch of n sequences costs n times its longest; that exceeds `batch_tokens` only where one sequence alone does.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda at: (-lengths[at], at)):
        room = batch_tokens // lengths[batches[-1][0]] if batches else 0
        if not batches or len(batches[-1]) >= room:
            batches.append([])
        batches[-1].append(index)
    return batches


@dataclass(frozen=True, kw_only=True)
class PaddedBatch:
    """Tensors as `token_logprobs` takes them: B sequences of at most T tokens, padded on the right with token 0."""

    tokens_B_T: Tensor
    lengths_B: Tensor
    wanted: Tensor
    """bool [B, T-1]: columns whose log-prob is asked for."""
    temperature_B: Tensor
    kept: Tensor | None
    """int64 [B, T-1, K], or None where no sequence was restricted."""


def padded(segments: Sequence[Segment], wanted: Sequence[np.ndarray], device: torch.device | str = "cpu") -> PaddedBatch:
    """`wanted[b]` bool [n_b] marks tokens; usually those sampled, or fewer."""
    longest = max(len(segment.tokens) for segment in segments)
    tokens_B_T = np.zeros((len(segments), longest), np.int64)
    for b, segment in enumerate(segments):
        tokens_B_T[b, : len(segment.tokens)] = segment.tokens
    kept = _padded_kept(segments, longest - 1)
    return PaddedBatch(
        tokens_B_T=torch.from_numpy(tokens_B_T).to(device),
        lengths_B=torch.tensor([len(segment.tokens) for segment in segments], device=device),
        wanted=torch.from_numpy(columns(wanted, longest)).to(device),
        temperature_B=torch.tensor([segment.temperature for segment in segments], dtype=torch.float32, device=device),
        kept=None if kept is None else kept.to(device),
    )


def columns(values: Sequence[np.ndarray], longest: int) -> np.ndarray:
    """[B, longest-1] of the vectors' dtype.

    Entry [b, t-1] is `values[b][t]`, 0 beyond its end; entry 0 of each is left out.
    """
    laid = np.zeros((len(values), longest - 1), values[0].dtype)
    for b, vector in enumerate(values):
        laid[b, : len(vector) - 1] = vector[1:]
    return laid


def _padded_kept(segments: Sequence[Segment], width: int) -> Tensor | None:
    if not any(segment.kept_counts.size for segment in segments):
        return None
    starts = [np.flatnonzero(segment.sampled)[: segment.kept_counts.size] - 1 for segment in segments]
    return pad_kept([s.kept_ids for s in segments], [s.kept_counts for s in segments], starts, width)
