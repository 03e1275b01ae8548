"""Demonstrations as padded tensors, the short ones apart from the long ones, so that little padding is computed."""

from __future__ import annotations

# ruff: noqa: N806 - axes are upper-case suffixes: B sequences, T tokens of the longest one
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.warm_start.demonstrations import Demonstration
from tools.warm_start.tokenizer import IDS, PAD, encode

SHORT_SHARE = 0.75
"""How many of a batch, the shortest, share one tensor: blurts are 70 % of the demonstrations and a fifth as long."""


@dataclass(frozen=True)
class Batch:
    """`tokens` int64 [B, T], right-padded; `lengths` int64 [B]; `learnt` bool [B, T-1], of tokens after the first."""

    tokens: Tensor
    lengths: Tensor
    learnt: Tensor


def by_length(demonstrations: Sequence[Demonstration]) -> list[Batch]:
    """One batch of short and one of long demonstrations; both together hold each once."""
    ordered = sorted(demonstrations, key=lambda demonstration: len(demonstration.text))
    cut = round(len(ordered) * SHORT_SHARE)
    return [padded(part) for part in (ordered[:cut], ordered[cut:]) if part]


def padded(demonstrations: Sequence[Demonstration]) -> Batch:
    """All of them in one batch, in their order."""
    lengths = [len(demonstration.text) for demonstration in demonstrations]
    tokens_B_T = torch.full((len(lengths), max(lengths)), IDS[PAD], dtype=torch.int64)
    learnt_B_T = torch.zeros(tokens_B_T.shape, dtype=torch.bool)
    for row, demonstration in enumerate(demonstrations):
        tokens_B_T[row, : lengths[row]] = torch.tensor(encode(demonstration.text))
        learnt_B_T[row, : lengths[row]] = torch.tensor(demonstration.learnt)
    return Batch(tokens_B_T, torch.tensor(lengths), learnt_B_T[:, 1:])
