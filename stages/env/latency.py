"""How long a tool takes: laws of seconds, pure functions of a `random.Random`.

Long-tailed tools are what makes asynchronous training worth its trouble; a law shows that tail on any machine. Knows no
clock and never sleeps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from stages.env.errors import EnvironmentOptionError, number

LatencyLaw: TypeAlias = Callable[[Random], float]

AGENTIC_QUANTILES: tuple[tuple[float, float], ...] = (
    (0.00, 0.02),
    (0.50, 0.3),
    (0.61, 1.0),
    (0.88, 10.0),
    (0.90, 13.6),
    (0.96, 60.0),
    (0.99, 216.0),
    (1.00, 3600.0),
)
"""(share, seconds) of the tool calls of coding agents: 61 % under 1 s, 27 % from 1 to 10 s, 8 % from 10 to 60 s, 4 %
longer; median 0.3 s, p90 13.6 s, p99 216 s, as measured on traces of coding agents (TraceLab). Those traces give
neither end of the law: 20 ms is about what starting a process costs, and with a longest call of one hour the mean is
19.0 s (measured: 18.4 s)."""


SHORTEST_S = 1e-9
"""A median has to be more than 0: its logarithm is taken."""


def no_latency(_rng: Random) -> float:
    """Always 0 s; draws nothing."""
    return 0.0


def lognormal(median_s: float, sigma: float) -> LatencyLaw:
    """Median `median_s` seconds; `sigma` is the deviation of the natural logarithm (2.9 resembles `agentic`)."""
    number("latency_median_s", median_s, SHORTEST_S)
    number("latency_sigma", sigma, 0.0, 100.0)
    return lambda rng: rng.lognormvariate(math.log(median_s), sigma)


def agentic(rng: Random) -> float:
    """Seconds of one tool call of a coding agent: AGENTIC_QUANTILES, straight in log seconds between its points."""
    share = rng.random()
    upper = bisect_right([point for point, _ in AGENTIC_QUANTILES], share)
    (low, shorter), (high, longer) = AGENTIC_QUANTILES[upper - 1 : upper + 1]
    return float(shorter * (longer / shorter) ** ((share - low) / (high - low)))


def latency_law(name: str, median_s: float, sigma: float, scale: float, longest_s: float) -> LatencyLaw:
    """The law that a config names, times `scale`, never above `longest_s` seconds. Raises EnvironmentOptionError."""
    laws = {"none": no_latency, "lognormal": lognormal(median_s, sigma), "agentic": agentic}
    if not isinstance(name, str) or name not in laws:
        raise EnvironmentOptionError(f"latency is {name!r}; it is one of: {', '.join(laws)}")
    number("latency_scale", scale, 0.0)
    number("latency_longest_s", longest_s, 0.0)
    law = laws[name]
    return lambda rng: min(longest_s, scale * law(rng))
