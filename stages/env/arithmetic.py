"""The calculator task's text: problems, calls of the tool, answers. Pure; chance is handed in.

    problem  "12+34-5=\\n"     call  "[12+34]\\n" ──► result "46\\n"     answer  "A41\\n"

Arithmetic is parsed by a grammar of one operation and never evaluated as code. Train and eval never share a problem:
the digest of an expression says on which side it lies, whatever the seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Literal

import xxhash

from stages.env.errors import number, whole

FEWEST_NUMBERS, MOST_NUMBERS = 2, 8
EVAL_ONE_IN = 8
"""One expression in so many is an eval problem: enough for hundreds, and few enough to leave training its variety."""
MALFORMED = "?\n"

_CALL = re.compile(r"\[(-?[0-9]{1,9})([+-])([0-9]{1,9})\]")
_ANSWER = re.compile(r"A(-?[0-9]{1,9})")
_TERM = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class ProblemLaw:
    """What expressions are drawn from: n numbers with weight (n - 1) ** -tail_exponent, each from 1 to `largest`."""

    tail_exponent: float = 2.0
    largest: int = 50
    most_numbers: int = MOST_NUMBERS

    def __post_init__(self) -> None:
        whole("most_numbers", self.most_numbers, FEWEST_NUMBERS, MOST_NUMBERS)
        whole("largest", self.largest, 10, 999)
        number("tail_exponent", self.tail_exponent, -100.0, 100.0)


def draw_expression(rng: Random, law: ProblemLaw, purpose: Literal["train", "eval"]) -> str:
    """An expression such as "12+34-5" on the purpose's side of the split."""
    counts = range(FEWEST_NUMBERS, law.most_numbers + 1)
    count = rng.choices(counts, [(n - 1) ** -law.tail_exponent for n in counts])[0]
    while True:
        numbers = [str(rng.randint(1, law.largest)) for _ in range(count)]
        expression = numbers[0] + "".join(rng.choice("+-") + number for number in numbers[1:])
        if is_held_out(expression) == (purpose == "eval"):
            return expression


def is_held_out(expression: str) -> bool:
    """Whether an expression is an eval problem; a property of its text alone."""
    return xxhash.xxh3_64_intdigest(expression.encode()) % EVAL_ONE_IN == 0


def terms(expression: str) -> list[str]:
    """The signed numbers of a sum: "12+34-5" gives ["12", "+34", "-5"]."""
    return _TERM.findall(expression)


def value(expression: str) -> int:
    """What a sum or difference comes to."""
    return sum(int(term) for term in terms(expression))


def compute(line: str) -> int | None:
    """The result of one call such as "[12+34]\\n", or None where the line is no well-formed call."""
    call = _CALL.fullmatch(_without_newline(line))
    if call is None:
        return None
    left, sign, right = call.groups()
    return int(left) + int(sign + right)


def answer_of(line: str) -> str | None:
    """The number that a line such as "A41\\n" answers with, as written, or None where it is no answer."""
    answer = _ANSWER.fullmatch(_without_newline(line))
    return answer.group(1) if answer else None


def _without_newline(line: str) -> str:
    return line.removesuffix("\n")
