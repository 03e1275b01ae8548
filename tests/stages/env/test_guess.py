"""The second environment keeps the same protocol with another kind of task."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from stages.env.environment import Done, Observation, load_environment
from stages.env.guess import Guess


def played(hidden: int, lines: list[str], **options: int) -> list[Observation | Done]:
    async def play() -> list[Observation | Done]:
        session = Guess(**options)
        said: list[Observation | Done] = [await session.reset({"highest": 64, "answer": str(hidden)})]
        return said + [await session.step(line) for line in lines]

    return asyncio.run(play())


def test_halving_the_range_finds_the_number() -> None:
    said = played(40, ["A32\n", "48\n", "A40\n"])
    assert said[:3] == [Observation("64?\n"), Observation("+\n"), Observation("-\n")]
    assert said[3] == Done(outcome={"answer": "40", "guesses": 3})


def test_spent_guesses_end_the_episode_truncated_with_the_last_guess() -> None:
    assert played(40, ["1\n", "2\n"], max_guesses=2)[-1] == Done(outcome={"answer": "2", "guesses": 2}, truncated=True)


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    assert isinstance(played(7, [text])[1], Observation | Done)


def test_train_and_eval_share_no_task_and_what_eval_hides_train_has_hidden_too() -> None:
    loaded = load_environment("stages.env.guess:Guess")
    train, held_out = (
        {(task["highest"], task["answer"]) for index in range(2000) for task in [loaded.task(index, purpose, 0, {})]}
        for purpose in ("train", "eval")
    )
    assert not train & held_out
    assert len(held_out) > 10
    assert {number for _, number in held_out} <= {number for _, number in train}
