"""Laws are what they say, and draw only from the generator that they are handed."""

from random import Random
from statistics import median

import pytest

from tools.sim.laws import agentic, constant, count, lognormal, random_of, uniform


def test_a_constant_draws_nothing() -> None:
    rng = Random(1)
    before = rng.getstate()
    assert constant(2.5)(rng) == 2.5
    assert rng.getstate() == before


def test_a_lognormal_law_has_its_median_and_its_cut() -> None:
    rng, law = Random(1), lognormal(8.0, 0.5, 24.0)
    drawn = [law(rng) for _ in range(4000)]
    assert median(drawn) == pytest.approx(8.0, rel=0.05)
    assert max(drawn) == 24.0


def test_the_agentic_law_has_the_measured_shares() -> None:
    rng, law = Random(1), agentic()
    drawn = sorted(law(rng) for _ in range(20_000))
    assert drawn[len(drawn) // 2] == pytest.approx(0.3, rel=0.1)
    assert sum(value < 1.0 for value in drawn) / len(drawn) == pytest.approx(0.61, abs=0.01)
    assert sum(value > 60.0 for value in drawn) / len(drawn) == pytest.approx(0.04, abs=0.01)
    assert drawn[-1] == 600.0


def test_each_subject_has_a_generator_of_its_own_that_is_the_same_in_every_run() -> None:
    assert random_of(1, "train", 7).random() == random_of(1, "train", 7).random()
    assert len({random_of(seed, "train", task).random() for seed in (1, 2) for task in (1, 2)}) == 4


def test_a_count_is_a_whole_number_of_at_least_one() -> None:
    assert count(constant(0.2), Random(1)) == 1
    assert {count(uniform(1.0, 5.0), Random(seed)) for seed in range(50)} == {1, 2, 3, 4}
