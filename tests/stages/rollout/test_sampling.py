from __future__ import annotations

import numpy as np
import pytest
import torch

from stages.rollout.chance import mixed_seed, uniforms
from stages.rollout.sampling import SamplingRows, draw


def some_rows(count: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> SamplingRows:
    return SamplingRows(np.full(count, temperature, np.float32), np.full(count, top_p, np.float32), np.full(count, top_k, np.int64))


def logits_of(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log().float()


def test_the_draw_inverts_the_cumulative_distribution() -> None:
    logits = logits_of(0.2, 0.0, 0.5, 0.3).expand(5, -1)
    drawn = draw(logits, some_rows(5), np.array([0.001, 0.1, 0.3, 0.71, 0.999999]))
    assert drawn.tokens.tolist() == [0, 0, 2, 3, 3]
    assert np.allclose(np.exp(drawn.logprobs), [0.2, 0.2, 0.5, 0.3, 0.3])
    assert drawn.ties == []


def test_an_impossible_token_is_never_drawn() -> None:
    logits = logits_of(0.0, 0.5, 0.5, 0.0).expand(4, -1)
    drawn = draw(logits, some_rows(4), np.array([2.0**-41, 0.5, 0.5 + 1e-9, 1 - 2.0**-41]))
    assert set(drawn.tokens.tolist()) <= {1, 2}


def test_top_k_then_top_p_keep_the_likeliest_and_report_them() -> None:
    logits = logits_of(0.1, 0.4, 0.05, 0.25, 0.2)
    only_k = draw(logits, some_rows(1, top_k=3), np.array([0.9]))
    assert only_k.kept[0].tolist() == [1, 3, 4]
    assert np.isclose(np.exp(only_k.logprobs[0]), 0.2 / 0.85)
    # Of the 0.85 that top-k leaves, 0.7 is 0.595: 0.4 and 0.25 reach it.
    both = draw(logits, some_rows(1, top_k=3, top_p=0.7), np.array([0.9]))
    assert both.kept[0].tolist() == [1, 3]
    only_p = draw(logits, some_rows(1, top_p=0.3), np.array([0.9]))
    assert only_p.kept[0].tolist() == [1]
    assert only_p.logprobs[0] == 0


def test_equal_probabilities_are_kept_by_id() -> None:
    drawn = draw(torch.zeros(1, 6), some_rows(1, top_k=2), np.array([0.6]))
    assert drawn.kept[0].tolist() == [0, 1]


def test_temperature_zero_takes_the_likeliest_at_the_log_prob_of_temperature_one() -> None:
    drawn = draw(logits_of(0.2, 0.5, 0.3), some_rows(1, temperature=0.0, top_p=0.5), np.array([0.99]))
    assert drawn.tokens.tolist() == [1]
    assert np.isclose(np.exp(drawn.logprobs[0]), 0.5)
    assert drawn.kept == {}


def test_rows_of_every_kind_mix() -> None:
    logits = logits_of(0.2, 0.5, 0.3).expand(3, -1)
    rows = SamplingRows(np.array([0.0, 1.0, 2.0], np.float32), np.array([1.0, 0.4, 1.0], np.float32), np.zeros(3, np.int64))
    drawn = draw(logits, rows, np.array([0.9, 0.9, 0.01]))
    assert drawn.tokens.tolist() == [1, 1, 0]
    assert list(drawn.kept) == [1]


@pytest.mark.parametrize(("uniform", "token", "other"), [(0.2 - 5e-7, 0, 2), (0.2 + 5e-7, 2, 0), (0.7 + 5e-7, 3, 2)])
def test_a_draw_near_a_boundary_is_reported_with_both_probabilities(uniform: float, token: int, other: int) -> None:
    probabilities = (0.2, 0.0, 0.5, 0.3)
    (tie,) = draw(logits_of(*probabilities), some_rows(1), np.array([uniform])).ties
    assert (tie.row, tie.token, tie.other) == (0, token, other)
    assert np.isclose(tie.probability, probabilities[token])
    assert np.isclose(tie.other_probability, probabilities[other])


def test_ties_of_the_likeliest_and_of_who_is_kept_are_reported() -> None:
    greedy = draw(torch.tensor([[1.0, 3.0, 3.0]]), some_rows(1, temperature=0.0), np.array([0.5]))
    assert [(tie.token, tie.other) for tie in greedy.ties] == [(1, 2)]
    kept = draw(torch.tensor([[1.0, 3.0, 3.0]]), some_rows(1, top_k=1), np.array([0.5]))
    assert [(tie.token, tie.other) for tie in kept.ties] == [(1, 2)]
    share = draw(logits_of(0.5, 0.3, 0.2), some_rows(1, top_p=0.8), np.array([0.1]))
    assert [(tie.token, tie.other) for tie in share.ties] in ([(0, 2)], [(0, 1)])


def test_uniforms_are_even_and_neighbouring_seeds_share_nothing() -> None:
    seeds = np.array([mixed_seed(seed) for seed in range(200)])
    table = np.array([uniforms(np.repeat(seed, 200), np.arange(200)) for seed in seeds])
    assert 0 < table.min() < table.max() < 1
    counts, _ = np.histogram(table, bins=50, range=(0, 1))
    assert ((counts - 800) ** 2 / 800).sum() < 49 + 5 * 98**0.5
    assert len(np.unique(table)) > 39_900
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.02


def test_a_uniform_depends_on_its_seed_and_position_alone() -> None:
    seeds = np.array([mixed_seed(7), mixed_seed(-1), mixed_seed(1 << 70)])
    together = uniforms(seeds, np.array([3, 4, 5]))
    assert [uniforms(seeds[i : i + 1], np.array([3 + i]))[0] for i in range(3)] == together.tolist()
    # A fixed value: journals replayed next year draw the same tokens.
    assert uniforms(np.array([mixed_seed(42)]), np.array([0])).tolist() == [0.5961188718306403]
