"""The calculator answers any text, computes what it is asked for, and never shares a problem between train and eval."""

import asyncio
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.env.arithmetic import ProblemLaw, compute, is_held_out, terms, value
from stages.env.calculator import Calculator
from stages.env.environment import Done, Observation, Task
from stages.env.errors import EnvironmentOptionError

numbers = st.integers(min_value=0, max_value=999_999_999)


def a_task(expression: str = "12+34-5") -> Task:
    return {"expression": expression, "answer": str(value(expression))}


def played(lines: list[str], environment: Calculator | None = None, task: Task | None = None) -> list[Observation | Done]:
    """What the environment says to each line, until it is done; the opening observation is first."""

    async def play() -> list[Observation | Done]:
        session = environment or Calculator()
        said: list[Observation | Done] = [await session.reset(task or a_task())]
        for line in lines:
            said.append(await session.step(line))
            if isinstance(said[-1], Done):
                break
        return said

    return asyncio.run(play())


def an_independent_value(expression: str) -> Fraction:
    """A sum evaluated left to right, one character at a time, without our parser."""
    total, sign, digits = Fraction(0), 1, ""
    for character in expression + "+":
        if character in "+-":
            total += sign * int(digits or "0")
            sign, digits = (1 if character == "+" else -1), ""
        else:
            digits += character
    return total


def test_a_solved_problem_goes_call_by_call_to_its_answer() -> None:
    said = played(["[12+34]\n", "[46-5]\n", "A41\n"])
    assert said[:3] == [Observation("12+34-5=\n"), Observation("46\n"), Observation("41\n")]
    assert said[3] == Done(outcome={"answer": "41", "tool_calls": 2})


@given(numbers, st.sampled_from("+-"), numbers, st.booleans())
def test_a_call_computes_what_python_computes(left: int, sign: str, right: int, negative: bool) -> None:
    left = -left if negative else left
    assert compute(f"[{left}{sign}{right}]\n") == (left + right if sign == "+" else left - right)


@given(st.text())
def test_no_text_makes_the_environment_raise(text: str) -> None:
    answer = played([text])[1]
    assert isinstance(answer, Observation | Done)


@given(st.text(alphabet="0123456789+-=[]A?\n", max_size=24))
def test_near_calls_are_answered_with_a_number_or_a_question_mark(text: str) -> None:
    said = played([text])[1]
    if isinstance(said, Observation):
        assert said.text == "?\n" or int(said.text) == compute(text)


@pytest.mark.parametrize("line", ["[12+-3]\n", "[1*2]\n", "[1+2", "1+2]", "[]\n", "\n", "", "A\n", "A4 1\n", "[１+２]\n", "[1+2]\n\n"])
def test_a_malformed_line_is_answered_with_a_question_mark(line: str) -> None:
    assert played([line])[1] == Observation("?\n")


def test_a_number_of_absurd_length_is_malformed_rather_than_slow() -> None:
    assert played(["[" + "9" * 100_000 + "+1]\n"])[1] == Observation("?\n")


def test_the_call_after_the_last_allowed_one_ends_the_episode_truncated() -> None:
    said = played(["[1+1]\n"] * 5, Calculator(max_calls=3))
    assert said[-1] == Done(outcome={"answer": None, "tool_calls": 3}, truncated=True)
    assert len(said) == 5


def test_an_answer_after_the_last_allowed_call_still_counts() -> None:
    assert played(["[1+1]\n", "A2\n"], Calculator(max_calls=1))[-1] == Done(outcome={"answer": "2", "tool_calls": 1})


def test_a_session_begins_anew_at_reset() -> None:
    session = Calculator(max_calls=1)
    played(["?", "?"], session)
    assert played(["[1+1]\n"], session)[1] == Observation("2\n")


@given(st.integers(min_value=0), st.integers(), st.sampled_from(["train", "eval"]))
def test_a_task_is_the_same_each_time_it_is_asked_for(index: int, seed: int, purpose: str) -> None:
    assert Calculator.task(index, purpose, seed) == Calculator.task(index, purpose, seed)  # type: ignore[arg-type]


def test_the_answer_of_a_task_is_what_an_independent_evaluation_gives() -> None:
    for index in range(500):
        task = Calculator.task(index, "train", 3)
        assert int(task["answer"]) == an_independent_value(task["expression"])


def test_train_and_eval_problems_are_disjoint_whatever_their_seeds() -> None:
    train = {Calculator.task(index, "train", seed)["expression"] for index in range(1500) for seed in (0, 1)}
    held_out = {Calculator.task(index, "eval", seed)["expression"] for index in range(1500) for seed in (0, 7)}
    assert not train & held_out
    assert all(map(is_held_out, held_out))
    assert not any(map(is_held_out, train))


def test_the_first_problems_of_different_seeds_differ() -> None:
    assert len({Calculator.task(0, "train", seed)["expression"] for seed in range(50)}) > 40


def test_lengths_have_a_heavy_tail() -> None:
    lengths = [len(terms(Calculator.task(index, "train", 0)["expression"])) for index in range(4000)]
    assert set(lengths) == set(range(2, 9))
    assert statistics.median(lengths) == 2
    shares = [lengths.count(n) / len(lengths) for n in range(2, 9)]
    law = [(n - 1) ** -2.0 for n in range(2, 9)]
    assert shares == pytest.approx([weight / sum(law) for weight in law], abs=0.03)


def test_a_law_of_problems_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(EnvironmentOptionError, match="most_numbers"):
        ProblemLaw(most_numbers=9)
    with pytest.raises(EnvironmentOptionError, match="largest"):
        ProblemLaw(largest=5)


def test_numbers_stay_within_the_option() -> None:
    drawn = [term for index in range(200) for term in terms(Calculator.task(index, "train", 0, largest=10)["expression"])]
    assert {abs(int(term)) for term in drawn} == set(range(1, 11))


def test_the_tool_takes_the_time_that_the_sessions_seed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("stages.env.calculator.asyncio.sleep", note)
    for seed in (5, 5, 6):
        played(["[1+2]\n", "[3+4]\n"], Calculator(seed=seed, latency="agentic", latency_scale=0.5))
    assert slept[:2] == slept[2:4] != slept[4:]
    assert len(slept) == 6


def test_a_tool_without_latency_and_a_malformed_call_never_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr("stages.env.calculator.asyncio.sleep", refuse)
    played(["[1+2]\n"], Calculator())
    played(["[1+"], Calculator(latency="agentic"))


def test_an_unknown_latency_law_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EnvironmentOptionError, match="none, lognormal, agentic"):
        Calculator(latency="gamma")
