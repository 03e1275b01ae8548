"""A near miss is worth something, and the very number the most."""

from typing import Any

import pytest

from stages.reward.nearness import nearness
from stages.reward.verifier import FinishedEpisode


def judged(answer: Any) -> dict[str, float]:
    return nearness(FinishedEpisode(task={"answer": "7", "highest": 16}, outcome={"answer": answer}, turns=[], truncated=False))


def test_the_nearer_the_better_and_found_is_a_part_of_its_own() -> None:
    assert judged("7") == {"found": 1.0, "near": 1.0}
    assert judged("3") == {"found": 0.0, "near": 0.75}
    assert judged("11") == judged("3")


@pytest.mark.parametrize("answer", ["-99", "23", None])
def test_what_is_far_off_or_no_answer_is_worth_nothing(answer: str | None) -> None:
    assert judged(answer) == {"found": 0.0, "near": 0.0}
