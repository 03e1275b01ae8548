"""Draws one token a row from logits, and says from which distribution and how narrowly.

Temperature first, then top-k, then top-p over what top-k left, as Hugging Face's warpers do. The draw inverts the
cumulative distribution at one uniform a row: no generator, and equal logits give equal tokens. Temperature 0 takes the
likeliest token, whatever top-k and top-p, and reports its log-prob at temperature 1. Knows no turns and no sessions.

Axes: N rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEAR_TIE = 1e-6
"""Share of the probability within which a draw counts as near a boundary: ten times the rounding of float32 logits."""
GREEDY_TIE = 1e-5
"""Difference of log-probs within which the two likeliest tokens count as tied; the same reason, in other units."""


@dataclass(frozen=True)
class SamplingRows:
    """How each row is sampled; arrays [N]."""

    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int64]


@dataclass(frozen=True)
class Tie:
    """A row, the token taken, the one that rounding could have given, and both probabilities before truncation."""

    row: int
    token: int
    other: int
    probability: float
    other_probability: float


@dataclass(frozen=True)
class Draws:
    tokens: NDArray[np.int64]
    """[N]"""
    logprobs: NDArray[np.float32]
    """[N], of the distribution drawn from."""
    kept: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    """Ascending kept ids of each row that top-p or top-k may restrict."""
    ties: list[Tie] = field(default_factory=list)


@torch.inference_mode()
def draw(logits: Tensor, rows: SamplingRows, uniforms: NDArray[np.float64]) -> Draws:
    """`logits` float32 [N, V]; `uniforms` float64 [N] in (0, 1)."""
    greedy = np.flatnonzero(rows.temperature == 0)
    restricted = np.flatnonzero(((rows.top_p < 1) | (rows.top_k > 0)) & (rows.temperature != 0))
    whole = torch.log_softmax(_scaled(logits, rows.temperature), dim=-1)
    log_distribution = whole
    kept: dict[int, NDArray[np.int32]] = {}
    ties: list[Tie] = []
    if restricted.size:
        log_distribution, kept, ties = _restrict(whole, rows, restricted)
    tokens, near = _inverse(log_distribution, uniforms)
    ties = [_draw_tie(whole, log_distribution, tokens, uniforms, row) for row in near] + ties
    if greedy.size:
        ties = [tie for tie in ties if rows.temperature[tie.row] != 0] + _take_likeliest(whole, greedy, tokens)
    logprobs = log_distribution.gather(1, tokens[:, None])[:, 0]
    return Draws(tokens.cpu().numpy(), logprobs.cpu().numpy(), kept, [_named(tie, tokens) for tie in ties])


def _scaled(logits: Tensor, temperature: NDArray[np.float32]) -> Tensor:
    if (temperature == 1).all():
        return logits
    divisors = np.where(temperature == 0, np.float32(1), temperature)
    return logits / torch.from_numpy(divisors).to(logits.device)[:, None]


def _inverse(log_distribution: Tensor, uniforms: NDArray[np.float64]) -> tuple[Tensor, list[int]]:
    """Tokens int64 [N] and the rows whose draw is near a boundary between two possible tokens.

    The sum runs in float64; the draw is scaled by its total, which differs from 1 by rounding.
    """
    cumulative = log_distribution.double().exp_().cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.from_numpy(uniforms).to(cumulative.device)[:, None] * total
    # Clamped for the sake of logits that are not finite: the engine reports those, by their log-probs.
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)
    edges = cumulative.gather(1, torch.cat(((tokens - 1).clamp_(min=0), tokens), dim=-1))
    # Distance to both edges; the outer edges 0 and total separate nothing, so they do not count.
    close = ((edges - target).abs_() < NEAR_TIE) & (edges < total)
    near = close.any(dim=-1).nonzero()[:, 0].tolist() if bool(close.any()) else []
    return tokens[:, 0], near


def _draw_tie(whole: Tensor, log_distribution: Tensor, tokens: Tensor, uniforms: NDArray[np.float64], row: int) -> Tie:
    """Names the possible token on the other side of the nearest boundary."""
    possible = (log_distribution[row] > -torch.inf).nonzero()[:, 0]
    place = int((possible == tokens[row]).nonzero()[0, 0])
    cumulative = log_distribution[row].double().exp().cumsum(-1)[possible]
    target = float(uniforms[row]) * float(cumulative[-1])
    below = abs(target - float(cumulative[place - 1])) if place > 0 else np.inf
    above = abs(float(cumulative[place]) - target) if place + 1 < len(possible) else np.inf
    other = int(possible[place - 1 if below < above else place + 1])
    return _tie(whole, row, int(tokens[row]), other)


def _tie(whole: Tensor, row: int, token: int, other: int) -> Tie:
    return Tie(row, token, other, float(whole[row, token].exp()), float(whole[row, other].exp()))


def _named(tie: Tie, tokens: Tensor) -> Tie:
    """A tie at the edge of the kept ids is found before the draw: the token taken is known only now."""
    if tie.token >= 0:
        return tie
    return Tie(tie.row, int(tokens[tie.row]), tie.other, tie.probability, tie.other_probability)


def _take_likeliest(whole: Tensor, greedy: NDArray[np.intp], tokens: Tensor) -> list[Tie]:
    """Overwrites `tokens` at the greedy rows; returns the ties among them."""
    lines = torch.from_numpy(greedy).to(whole.device)
    tokens[lines] = whole[lines].argmax(dim=-1)
    best, places = whole[lines].topk(min(2, whole.shape[1]), dim=-1)
    if best.shape[1] < 2:
        return []
    tied = ((best[:, 0] - best[:, 1]) < GREEDY_TIE).nonzero()[:, 0].tolist()
    ties = []
    for at in tied:
        row = int(greedy[at])
        token = int(tokens[row])
        other = next(int(place) for place in places[at] if int(place) != token)
        ties.append(_tie(whole, row, token, other))
    return ties


def _restrict(whole: Tensor, rows: SamplingRows, restricted: NDArray[np.intp]) -> tuple[Tensor, dict[int, NDArray[np.int32]], list[Tie]]:
    """Distributions without what top-k and top-p leave out, the kept ids, and ties about who is left out.

    Equal probabilities are ordered by id, so that the kept set is a function of the distribution.
    """
    lines = torch.from_numpy(restricted).to(whole.device)
    ordered, order = whole[lines].sort(dim=-1, descending=True, stable=True)
    sizes = torch.minimum(_kept_by_count(ordered, rows, restricted), _kept_by_share(ordered, rows, restricted))
    inside = torch.arange(ordered.shape[1], device=whole.device) < sizes[:, None]
    mask = torch.zeros_like(inside).scatter_(1, order, inside)
    restricted_whole = whole.clone()
    restricted_whole[lines] = torch.log_softmax(whole[lines].masked_fill(~mask, -torch.inf), dim=-1)
    kept = {int(row): mask[at].nonzero()[:, 0].to(torch.int32).cpu().numpy() for at, row in enumerate(restricted)}
    return restricted_whole, kept, _edge_ties(ordered, order, sizes, rows, restricted)


def _kept_by_count(ordered: Tensor, rows: SamplingRows, restricted: NDArray[np.intp]) -> Tensor:
    """int64 [n]: how many top-k keeps."""
    vocabulary = ordered.shape[1]
    counts = np.where(rows.top_k[restricted] > 0, rows.top_k[restricted], vocabulary)
    return torch.from_numpy(np.minimum(counts, vocabulary)).to(ordered.device)


def _kept_by_share(ordered: Tensor, rows: SamplingRows, restricted: NDArray[np.intp]) -> Tensor:
    """int64 [n]: how many of the likeliest, in order, reach top-p of what top-k left; at least one."""
    before, total = _shares(ordered, rows, restricted)
    share = torch.from_numpy(rows.top_p[restricted].astype(np.float64)).to(ordered.device)[:, None]
    wanted = torch.where(share < 1, share * total, torch.inf)
    return (before < wanted).sum(dim=-1).clamp_(min=1)


def _shares(ordered: Tensor, rows: SamplingRows, restricted: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
    """float64 [n, V]: probability of all likelier tokens; [n, 1]: probability of what top-k leaves."""
    probabilities = ordered.double().exp_()
    cumulative = probabilities.cumsum(-1)
    total = cumulative.gather(1, _kept_by_count(ordered, rows, restricted)[:, None] - 1)
    return cumulative - probabilities, total


def _edge_ties(ordered: Tensor, order: Tensor, sizes: Tensor, rows: SamplingRows, restricted: NDArray[np.intp]) -> list[Tie]:
    """Rows where rounding may have decided who is kept; `token` -1 stands for whatever is drawn."""
    before, total = _shares(ordered, rows, restricted)
    ties = []
    for at, row in enumerate(restricted):
        share = float(rows.top_p[row])
        to_edge = (before[at] - share * total[at]).abs().tolist() if share < 1 else [np.inf] * ordered.shape[1]
        doubtful = _doubtful_place(ordered[at].tolist(), to_edge, int(sizes[at]))
        if doubtful is not None:
            last, other = ordered[at, int(sizes[at]) - 1], ordered[at, doubtful]
            ties.append(Tie(int(row), -1, int(order[at, doubtful]), float(last.exp()), float(other.exp())))
    return ties


def _doubtful_place(ordered: list[float], to_edge: list[float], size: int) -> int | None:
    """Which place in the order may be kept or not by rounding alone: the last kept, the first left out, or none."""
    if size < len(ordered) and (to_edge[size] < NEAR_TIE or ordered[size - 1] - ordered[size] < GREEDY_TIE):
        return size
    return size - 1 if size > 1 and to_edge[size - 1] < NEAR_TIE else None
