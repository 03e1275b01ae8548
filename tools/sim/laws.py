"""Laws: how long things take and how much is said, as pure functions of a `random.Random` that is handed in.

Knows no clock and no global generator. What a session does depends only on (seed, purpose, task, member), never on the order of events: two
policies can be compared on the same work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from msgspec import Struct

from stages.env.latency import agentic as agentic_seconds

Law = Callable[[Random], float]

AGENTIC_LONGEST_S = 600.0
"""Tool calls are cut here by default, as agent harnesses do."""


def constant(value: float) -> Law:
    """Always `value`; draws nothing."""
    return lambda rng: value


def uniform(low: float, high: float) -> Law:
    """Evenly between `low` and `high`."""
    return lambda rng: rng.uniform(low, high)


def lognormal(median: float, sigma: float, longest: float = math.inf) -> Law:
    """Median `median`, deviation `sigma` of the natural logarithm, cut at `longest`."""
    return lambda rng: min(longest, rng.lognormvariate(math.log(median), sigma))


def agentic(longest_s: float = AGENTIC_LONGEST_S) -> Law:
    """Seconds of a coding agent's tool call as measured (TraceLab): 61 % under 1 s, 4 % above a minute, cut at `longest_s`."""
    return lambda rng: min(longest_s, agentic_seconds(rng))


class EngineLaw(Struct, frozen=True, kw_only=True):
    """One replica. A decode step of b turns takes `step_s + turn_s * b`; a turn that joins prefills `prefill_s` a token."""

    step_s: float = 0.0006
    turn_s: float = 0.00001
    prefill_s: float = 0.000002
    granularity: int = 8
    """Tokens decoded between two looks at what arrived: fewer are truer and slower to simulate."""
    install_s: float = 0.01


class TrainerLaw(Struct, frozen=True, kw_only=True):
    """A step of n tokens takes `step_s + token_s * n` under a slot grant, and `apply_s` to apply, save and publish."""

    step_s: float = 0.02
    token_s: float = 0.00003
    apply_s: float = 0.02


class Laws(Struct, frozen=True, kw_only=True):
    """Everything that takes time or chance. Times in seconds; the defaults resemble the quickstart on two cores."""

    boot_s: Law = uniform(0.2, 0.4)
    """From a process's start to its first hello."""
    load_s: Law = uniform(0.2, 1.0)
    """From the welcome to ready."""
    network_s: float = 0.0002
    reset_s: Law = constant(0.0005)
    tool_s: Law = constant(0.0005)
    turns: Law = uniform(1.0, 5.0)
    """Turns of an episode; rounded down, at least 1."""
    said_tokens: Law = lognormal(8.0, 0.5, 24.0)
    """Tokens of the policy's turn."""
    heard_tokens: Law = lognormal(6.0, 0.4, 24.0)
    """Tokens of the environment's turn."""
    reward_s: Law = constant(0.001)
    reference_token_s: float = 0.000005
    verify_s: Law = constant(0.005)
    """weight-sync: a version's files."""
    engine: EngineLaw = EngineLaw()
    trainer: TrainerLaw = TrainerLaw()
    skill: Callable[[int], float] = lambda version: min(0.97, 0.3 + 0.05 * version)
    """Chance that an episode of this version is correct, before its task's difficulty."""
    env_failure: float = 0.0
    """Chance that a session fails and its env says so."""


def random_of(seed: int, *words: int | str) -> Random:
    """A generator of its own for each subject, the same in every run."""
    return Random("/".join(str(word) for word in (seed, *words)))


def count(law: Law, rng: Random) -> int:
    """A law's value as a number of things, at least 1."""
    return max(1, int(law(rng)))
