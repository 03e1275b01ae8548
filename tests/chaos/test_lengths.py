"""The comparison of lengths accuses a bias and nothing else."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.lengths import compare


def test_equal_samples_have_no_distance() -> None:
    assert compare([1, 2, 2, 3], [3, 2, 1, 2]).distance == 0


def test_the_distance_is_the_largest_between_the_distribution_functions() -> None:
    assert compare([1, 1, 1, 2], [1, 2, 2, 2]).distance == pytest.approx(0.5)


def test_two_fair_draws_are_alike_and_losing_most_long_ones_is_not() -> None:
    rng = Random(1)
    issued = rng.choices(range(2, 9), [(n - 1) ** -2.0 for n in range(2, 9)], k=2000)
    assert compare(rng.sample(issued, 1000), issued).alike
    assert not compare([length for length in issued if length < 4 or rng.random() < 0.1], issued).alike


def test_an_empty_sample_is_no_sample() -> None:
    with pytest.raises(ValueError, match="empty"):
        compare([], [1])
