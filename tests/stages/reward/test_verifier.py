"""A verifier is found by its name, judges one finished episode, and what it returns is checked."""

import asyncio
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import VerifierFailure
from stages.reward.exact_match import exact_match
from stages.reward.verifier import (
    JSON,
    FinishedEpisode,
    VerifierNotFound,
    VerifierShapeError,
    WeightError,
    load_verifier,
    reward_parts,
)

SOURCE = """
async def slow_parts(episode): return {"right": episode.outcome["answer"] == "41", "brevity": 0.5}
def of_two(episode, other): return 1.0
number = 3
def of_wrong_parts(episode): return 1.0
of_wrong_parts.parts = (1, 2)
"""


def an_episode(given: JSON = "41", wanted: JSON = 41, truncated: bool = False) -> FinishedEpisode:
    turns = [("env", "12+34-5=\n"), ("policy", f"A{given}\n")]
    return FinishedEpisode(task={"answer": wanted}, outcome={"answer": given}, turns=turns, truncated=truncated)  # type: ignore[arg-type]


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"user_verifiers_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop(name, None)
    return name


@pytest.mark.parametrize(
    ("given", "wanted", "reward"),
    [
        ("41", 41, 1.0),
        ("41", "41", 1.0),
        (" 41\n", "41", 1.0),
        ("42", 41, 0.0),
        (None, 41, 0.0),
        ("041", 41, 0.0),
        ("", "", 1.0),
    ],
)
def test_exact_match_compares_answers_to_the_letter(given: JSON, wanted: JSON, reward: float) -> None:
    assert exact_match(an_episode(given, wanted)) == reward


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        ("stages.reward.nearness:nearness", "nearr", r"did you mean 'near'\? it gives: found, near"),
        ("stages.reward.nearness:nearness", "bonus", "it gives: found, near"),
        ("stages.reward.exact_match:exact_match", "right", "it gives: reward"),
    ],
)
def test_a_weight_of_a_part_that_never_comes_is_refused_by_name(path: str, name: str, said: str) -> None:
    with pytest.raises(WeightError, match=rf"^stages\.reward\.weights\.{name}: {path} gives no such part; {said}"):
        load_verifier(path).check_weights({name: 1.0})


def test_the_shipped_verifiers_give_the_parts_that_they_name() -> None:
    numbers = FinishedEpisode(task={"answer": "7", "highest": 9}, outcome={"answer": "6"}, turns=[], truncated=False)
    for path in ("stages.reward.nearness:nearness", "stages.reward.exact_match:exact_match"):
        loaded = load_verifier(path)
        assert tuple(asyncio.run(loaded.judge(numbers))) == loaded.parts
        loaded.check_weights(dict.fromkeys(loaded.parts, 0.5))


def test_a_verifier_that_names_no_parts_takes_any_weight(user_module: str) -> None:
    load_verifier(f"{user_module}:slow_parts").check_weights({"whatever": 1.0})


def test_parts_that_are_no_names_are_refused(user_module: str) -> None:
    with pytest.raises(VerifierShapeError, match="parts is"):
        load_verifier(f"{user_module}:of_wrong_parts")


def test_exact_match_gives_nothing_for_an_episode_without_an_outcome() -> None:
    episode = FinishedEpisode(task={"answer": 1}, outcome={}, turns=[], truncated=True)
    assert exact_match(episode) == 0.0


def test_a_plain_verifier_gives_one_part() -> None:
    loaded = load_verifier("stages.reward.exact_match:exact_match")
    assert asyncio.run(loaded.judge(an_episode())) == {"reward": 1.0}


def test_an_async_verifier_gives_its_named_parts(user_module: str) -> None:
    loaded = load_verifier(f"{user_module}:slow_parts")
    assert asyncio.run(loaded.judge(an_episode())) == {"right": 1.0, "brevity": 0.5}
    assert len(loaded.fingerprint) == 16


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("exact_match", "module:function"),
        ("no_such_module:judge", "no module 'no_such_module' on the path"),
        ("stages.reward.exact_match:exact_mash", "has no exact_mash"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_by_name(path: str, said: str) -> None:
    with pytest.raises(VerifierNotFound, match=said):
        load_verifier(path)


@pytest.mark.parametrize(("name", "said"), [("of_two", "one argument"), ("number", "not a function")])
def test_what_cannot_be_called_with_an_episode_is_refused(user_module: str, name: str, said: str) -> None:
    with pytest.raises(VerifierShapeError, match=said):
        load_verifier(f"{user_module}:{name}")


@given(st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.integers(-(10**9), 10**9))
def test_any_finite_number_is_a_reward(number: float) -> None:
    assert reward_parts(number) == {"reward": float(number)}


@pytest.mark.parametrize("judgement", [math.nan, math.inf, None, "good", {}, {"right": None}, {"right": -math.inf}])
def test_what_is_no_reward_is_refused_with_the_parts_name(judgement: object) -> None:
    with pytest.raises(VerifierFailure):
        reward_parts(judgement)
