"""The laws of tool latency have the quantiles they claim."""

import math
import statistics
from random import Random

import pytest

from stages.env.errors import EnvironmentOptionError
from stages.env.latency import LatencyLaw, agentic, latency_law, lognormal, no_latency


def drawn(law: LatencyLaw, count: int = 40_000, seed: int = 11) -> list[float]:
    rng = Random(seed)
    return sorted(law(rng) for _ in range(count))


def quantile(ordered: list[float], share: float) -> float:
    return ordered[int(share * len(ordered))]


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.3), (0.9, 13.6), (0.99, 216.0)])
def test_the_agentic_law_has_the_measured_quantiles(share: float, seconds: float) -> None:
    assert quantile(drawn(agentic), share) == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize(("low", "high", "share"), [(0, 1, 0.61), (1, 10, 0.27), (10, 60, 0.08), (60, math.inf, 0.04)])
def test_the_agentic_law_fills_the_measured_bins(low: float, high: float, share: float) -> None:
    seconds = drawn(agentic)
    assert sum(low <= s < high for s in seconds) / len(seconds) == pytest.approx(share, abs=0.01)


def test_the_agentic_law_spends_most_of_its_time_in_few_calls() -> None:
    seconds = drawn(agentic)
    assert statistics.fmean(seconds) == pytest.approx(18.4, rel=0.15)
    assert sum(s for s in seconds if s > 60) / sum(seconds) == pytest.approx(0.85, abs=0.05)


def test_the_lognormal_law_has_its_median_and_its_spread() -> None:
    seconds = drawn(lognormal(2.0, 0.5))
    assert quantile(seconds, 0.5) == pytest.approx(2.0, rel=0.03)
    assert statistics.stdev(math.log(s) for s in seconds) == pytest.approx(0.5, rel=0.03)


def test_no_latency_draws_nothing() -> None:
    rng = Random(1)
    assert no_latency(rng) == 0.0
    assert rng.random() == Random(1).random()


def test_a_scale_shrinks_every_draw_and_a_bound_cuts_the_longest() -> None:
    full = drawn(latency_law("agentic", 0.3, 1.0, 1.0, math.inf))
    small = drawn(latency_law("agentic", 0.3, 1.0, 0.01, 5.0))
    assert small == pytest.approx([min(5.0, s / 100) for s in full])
    assert small[-1] == 5.0


@pytest.mark.parametrize("arguments", [("gamma", 0.3, 1, 1, 1), ("none", 0, 1, 1, 1), ("none", 1, -1, 1, 1), ("none", 1, 1, -1, 1)])
def test_a_law_that_cannot_be_drawn_from_is_refused(arguments: tuple[str, float, float, float, float]) -> None:
    with pytest.raises(EnvironmentOptionError):
        latency_law(*arguments)
