"""Log-probabilities of given next tokens, as the rollout engine reports them: under temperature, and restricted to the
kept ids where top-p or top-k left only some. Float32, differentiable; actor-train and reference both use it.

The behaviour distribution at a position is softmax(logits / temperature), set to zero outside the kept ids and divided
by what is left. Temperature 0 (greedy) has no useful distribution: as in the engine, it is scored at temperature 1.

Axes: B sequences, T tokens of the padded batch, N picked positions, K kept ids (the longest list), V vocabulary.
Entry [b, t] of a result with T-1 columns belongs to token [b, t+1], predicted at position t.
"""

# ruff: noqa: N803, N806 - axes are upper-case suffixes

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

NO_ID = -1
"""Pads the rows of a kept-ids tensor. A row of nothing else is not restricted."""

LogitsFunction = Callable[[Tensor, Tensor], Tensor]
"""(tokens int64[B, T], picked bool[B, T]) -> logits [N, V]: a Decoder, or one wrapped for data-parallel training."""


def token_logprobs(
    decoder: LogitsFunction,
    tokens_B_T: Tensor,
    lengths_B: Tensor,
    temperature: float | Tensor = 1.0,
    kept: Tensor | None = None,
    wanted: Tensor | None = None,
) -> Tensor:
    """Log-probs float32 [B, T-1] of tokens[:, 1:]; 0 past a sequence's length and where not wanted. Gradient flows.

    `tokens_B_T` int64, right-padded; `lengths_B` int64; `temperature` a number, [B] or [B, T-1]; `kept` int64
    [B, T-1, K], padded with NO_ID; `wanted` bool [B, T-1] (usually the loss mask): the head is computed only there.
    """
    return token_logprobs_and_entropy(decoder, tokens_B_T, lengths_B, temperature, kept, wanted)[0]


def token_logprobs_and_entropy(
    decoder: LogitsFunction,
    tokens_B_T: Tensor,
    lengths_B: Tensor,
    temperature: float | Tensor = 1.0,
    kept: Tensor | None = None,
    wanted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As token_logprobs, and the entropy (nats, float32 [B, T-1]) of the same distribution, without gradient."""
    picked = _scored_positions(tokens_B_T, lengths_B, wanted)
    logits = decoder(tokens_B_T, torch.nn.functional.pad(picked, (0, 1)))
    at_position = torch.broadcast_to(_per_token(temperature, tokens_B_T), picked.shape)[picked]
    kept_N_K = None if kept is None else kept[picked]
    logprobs, entropy = next_logprobs(logits, tokens_B_T[:, 1:][picked], at_position, kept_N_K)
    blank = torch.zeros(picked.shape, dtype=torch.float32, device=tokens_B_T.device)
    return blank.masked_scatter(picked, logprobs), blank.masked_scatter(picked, entropy)


def next_logprobs(logits_N_V: Tensor, next_N: Tensor, temperature_N: Tensor, kept_N_K: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies, each float32 [N], of `next_N` int64. Only the first carries a gradient.

    A next token outside its kept ids gets -inf: it cannot have been sampled.
    """
    greedy = temperature_N == 0
    scaled = logits_N_V.float() / torch.where(greedy, torch.ones_like(temperature_N), temperature_N)[:, None]
    if kept_N_K is not None:
        scaled = scaled.masked_fill(~_kept_mask(kept_N_K, scaled.shape[-1]), -torch.inf)
    log_distribution = torch.log_softmax(scaled, dim=-1)
    with torch.no_grad():
        distribution = log_distribution.exp()
        entropy = -(distribution * log_distribution.masked_fill(distribution == 0, 0.0)).sum(-1)
    return log_distribution.gather(1, next_N[:, None])[:, 0], entropy


def pad_kept(ids: Sequence[np.ndarray], counts: Sequence[np.ndarray], starts: Sequence[np.ndarray], width: int) -> Tensor:
    """Gathers the ragged kept ids of B sequences into the padded form above, int64 [B, width, K], width = T-1.

    For sequence b: `ids[b]` int32 [sum of counts[b]], `counts[b]` int32 [n], and `starts[b]` int [n]: the column (index
    of the predicted token, minus 1) that each count belongs to.
    """
    longest = max((int(count.max()) for count in counts if count.size), default=1)
    padded = np.full((len(ids), width, longest), NO_ID, dtype=np.int64)
    for b, (flat, count, column) in enumerate(zip(ids, counts, starts, strict=True)):
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        padded[b, np.repeat(column, count), within] = flat
    return torch.from_numpy(padded)


def _scored_positions(tokens_B_T: Tensor, lengths_B: Tensor, wanted: Tensor | None) -> Tensor:
    columns = torch.arange(tokens_B_T.shape[1] - 1, device=tokens_B_T.device)
    real = columns[None, :] < (lengths_B - 1)[:, None]
    return real if wanted is None else real & wanted


def _per_token(temperature: float | Tensor, tokens_B_T: Tensor) -> Tensor:
    values = torch.as_tensor(temperature, dtype=torch.float32, device=tokens_B_T.device)
    return values[:, None] if values.dim() == 1 else values


def _kept_mask(kept_N_K: Tensor, vocabulary: int) -> Tensor:
    """bool [N, V]. The padding falls on one extra column, which is cut off."""
    inside = torch.zeros((kept_N_K.shape[0], vocabulary + 1), dtype=torch.bool, device=kept_N_K.device)
    inside.scatter_(1, torch.where(kept_N_K == NO_ID, vocabulary, kept_N_K), True)
    unrestricted = (kept_N_K == NO_ID).all(dim=1, keepdim=True)
    return inside[:, :vocabulary] | unrestricted
