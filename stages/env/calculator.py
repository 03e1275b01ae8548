"""The quickstart's environment: sums and differences, with a tool that computes one operation at a time.

    env     12+34-5=          the problem
    policy  [12+34]           a call of the tool; every line is one turn
    env     46
    policy  [46-5]
    env     41
    policy  A41               the answer ends the episode

What is neither a call nor an answer is answered "?" and counts as a call; after `max_calls` calls the next one ends the
episode, truncated. The tool may take time by a law of `latency.py`, drawn from the session's seed. Promises: any text
is answered, none raises. The true answer stands in the task for the verifier and is never said to the policy.
"""

from __future__ import annotations

import asyncio
from random import Random

from stages.env.arithmetic import MALFORMED, MOST_NUMBERS, ProblemLaw, answer_of, compute, draw_expression, value
from stages.env.environment import Done, Observation, Purpose, Task
from stages.env.errors import whole
from stages.env.latency import latency_law

MOST_CALLS = 1_000_000
"""More is a slip of the hand: `stages.env.max_turns` cuts an episode long before."""


class Calculator:
    """One session. Latencies in seconds; `latency` is "none", "lognormal" or "agentic"."""

    def __init__(
        self,
        *,
        seed: int = 0,
        max_calls: int = 10,  # the longest problem needs 7; the rest is room for mistakes
        latency: str = "none",
        latency_median_s: float = 0.3,
        latency_sigma: float = 1.0,
        latency_scale: float = 1.0,
        latency_longest_s: float = 600.0,
    ) -> None:
        self._rng = Random(seed)
        self._law = latency_law(latency, latency_median_s, latency_sigma, latency_scale, latency_longest_s)
        self._max_calls = whole("max_calls", max_calls, 1, MOST_CALLS)
        self._calls = 0

    @staticmethod
    def task(
        index: int,
        purpose: Purpose,
        seed: int,
        tail_exponent: float = 2.0,
        largest: int = 50,
        most_numbers: int = MOST_NUMBERS,
    ) -> Task:
        """`{"expression": "12+34-5", "answer": "41"}`: the same for the same arguments, on any host."""
        rng = Random(f"calculator {purpose} {seed} {index}")
        expression = draw_expression(rng, ProblemLaw(tail_exponent, largest, most_numbers), purpose)
        return {"expression": expression, "answer": str(value(expression))}

    async def reset(self, task: Task) -> Observation:
        self._calls = 0
        return Observation(f"{task['expression']}=\n")

    async def step(self, text: str) -> Observation | Done:
        answer = answer_of(text)
        if answer is not None:
            return self._done(answer)
        if self._calls == self._max_calls:
            return self._done(None)
        self._calls += 1
        result = compute(text)
        if result is None:
            return Observation(MALFORMED)
        await self._work()
        return Observation(f"{result}\n")

    def _done(self, answer: str | None) -> Done:
        return Done(outcome={"answer": answer, "tool_calls": self._calls}, truncated=answer is None)

    async def _work(self) -> None:
        seconds = self._law(self._rng)
        if seconds > 0:
            await asyncio.sleep(seconds)
