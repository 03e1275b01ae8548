"""Demonstrations of the calculator task: how a player that does not yet know what pays might play it.

A share of them uses the tool, once per operation, and answers right. The others blurt out an answer near the right one,
mostly wrong. Learning them gives a model that can use the tool and seldom does: what reinforcement learning then has to
find out. Pure; chance is handed in; only problems of the train side are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from stages.env.arithmetic import ProblemLaw, compute, draw_expression, terms, value

BLURT_ERRORS = (0, 1, -1, 2, -3, 4, -5, -7, 10, -10)
"""What a blurted answer is off by: one in ten is right, if the model could add at all, and most look plausible."""


@dataclass(frozen=True)
class DemonstrationLaw:
    """What demonstrations are drawn from. All lengths are equally frequent, or the long ones would not be learnt.

    `tool_share` must not depend on the length: the model would learn to tell from a problem whether to use the tool.
    """

    tool_share: float = 0.3
    problems: ProblemLaw = field(default_factory=lambda: ProblemLaw(tail_exponent=0.0))


@dataclass(frozen=True)
class Demonstration:
    """One episode as (text, learnt) pieces in order; what the environment says is read, not learnt."""

    pieces: tuple[tuple[str, bool], ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    @property
    def learnt(self) -> list[bool]:
        """One flag a character."""
        return [flag for text, flag in self.pieces for _ in text]


def demonstrate(rng: Random, law: DemonstrationLaw) -> Demonstration:
    """One demonstration of a fresh train problem."""
    expression = draw_expression(rng, law.problems, "train")
    if rng.random() < law.tool_share:
        return with_tool(expression)
    return blurted(expression, value(expression) + rng.choice(BLURT_ERRORS))


def with_tool(expression: str) -> Demonstration:
    """Calls the tool once per operation, from left to right, and answers with its last result."""
    pieces = [(f"{expression}=\n", False)]
    so_far, *rest = terms(expression)
    for term in rest:
        call = f"[{so_far}{term}]\n"
        so_far = str(compute(call))
        pieces += [(call, True), (f"{so_far}\n", False)]
    return Demonstration((*pieces, (f"A{so_far}\n", True)))


def blurted(expression: str, answer: int) -> Demonstration:
    """Answers at once, without the tool."""
    return Demonstration(((f"{expression}=\n", False), (f"A{answer}\n", True)))
