"""Demonstrations use the tool as often as they should, keep the environment's rules, and show no held-out problem."""

import asyncio
import re
from random import Random

import pytest

from stages.env.arithmetic import is_held_out, terms, value
from stages.env.calculator import Calculator
from stages.env.environment import Done, Observation
from tools.warm_start.demonstrations import (
    Demonstration,
    DemonstrationLaw,
    blurted,
    demonstrate,
    with_tool,
)


def some_demonstrations(count: int = 3000, law: DemonstrationLaw | None = None) -> list[Demonstration]:
    rng = Random(4)
    return [demonstrate(rng, law or DemonstrationLaw()) for _ in range(count)]


def expression_of(demonstration: Demonstration) -> str:
    return demonstration.text.split("=")[0]


def what_the_environment_says(demonstration: Demonstration) -> str:
    """The texts that a real session answers the demonstration's learnt lines with, its opening included."""

    async def play() -> str:
        session = Calculator()
        said = (await session.reset({"expression": expression_of(demonstration)})).text
        for text, learnt in demonstration.pieces:
            if learnt:
                answer = await session.step(text)
                said += answer.text if isinstance(answer, Observation) else ""
        return said

    return asyncio.run(play())


def test_a_demonstration_with_the_tool_is_an_episode_of_the_real_environment() -> None:
    for demonstration in some_demonstrations(300):
        read = "".join(text for text, learnt in demonstration.pieces if not learnt)
        assert read == what_the_environment_says(demonstration)


def test_the_tool_path_ends_in_the_right_answer() -> None:
    async def last_word(expression: str) -> Observation | Done:
        session = Calculator()
        await session.reset({"expression": expression})
        lines = [text for text, learnt in with_tool(expression).pieces if learnt]
        return [await session.step(line) for line in lines][-1]

    for expression in ("1+2", "50-49-48+7", "1-50-50-50-50-50-50-50"):
        done = asyncio.run(last_word(expression))
        assert isinstance(done, Done)
        assert done.outcome == {"answer": str(value(expression)), "tool_calls": len(terms(expression)) - 1}


def test_about_three_in_ten_demonstrations_use_the_tool_whatever_the_length() -> None:
    shown = some_demonstrations(6000)
    for numbers in (2, 5, 8):
        of_length = ["[" in each.text for each in shown if len(terms(expression_of(each))) == numbers]
        assert sum(of_length) / len(of_length) == pytest.approx(0.3, abs=0.07)


def test_a_blurt_is_near_the_truth_and_mostly_wrong() -> None:
    blurts = [each for each in some_demonstrations() if "[" not in each.text]
    errors = [int(re.findall(r"A(-?\d+)\n", each.text)[0]) - value(expression_of(each)) for each in blurts]
    assert max(map(abs, errors)) <= 10
    assert errors.count(0) / len(errors) == pytest.approx(0.1, abs=0.03)


def test_no_demonstration_shows_a_held_out_problem() -> None:
    assert not any(is_held_out(expression_of(each)) for each in some_demonstrations())


def test_only_what_the_policy_says_is_learnt() -> None:
    demonstration = with_tool("12+34")
    learnt = "".join(c for c, flag in zip(demonstration.text, demonstration.learnt, strict=True) if flag)
    assert demonstration.text == "12+34=\n[12+34]\n46\nA46\n"
    assert learnt == "[12+34]\nA46\n"
    assert blurted("1+2", 5).pieces == (("1+2=\n", False), ("A5\n", True))
