"""An environment is found by its name, or refused with what is wrong and what to do."""

import asyncio
import math
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.env.environment import Done, load_environment
from stages.env.errors import EnvironmentNotFound, EnvironmentOptionError, EnvironmentShapeError
from stages.service.named_code import source_fingerprint

CALCULATOR = "stages.env.calculator:Calculator"
GUESS = "stages.env.guess:Guess"
GOOD = """
from stages.env.environment import Done, Observation
class Echo:
    def __init__(self, *, loud=False): self.loud = loud
    @staticmethod
    def task(index, purpose, seed, words=3): return {"say": purpose, "words": words}
    async def reset(self, task): return Observation(task["say"])
    async def step(self, text): return Done(outcome={"answer": text.upper() if self.loud else text})
"""

WriteModule = Callable[[str], str]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteModule:
    """Writes source as a module that can be imported, and gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        name = f"user_environment_{len(list(tmp_path.glob('*.py')))}_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        sys.modules.pop(name, None)
        return name

    return write


def test_a_users_class_is_found_and_plays(write_module: WriteModule) -> None:
    loaded = load_environment(f"{write_module(GOOD)}:Echo")
    loaded.check_options({"loud": True, "words": 2})
    session = loaded.open({"loud": True, "words": 2}, seed=1)
    assert loaded.task(0, "eval", 0, {"loud": True, "words": 2}) == {"say": "eval", "words": 2}
    assert asyncio.run(session.step("hi")) == Done(outcome={"answer": "HI"})


def test_a_task_function_may_stand_beside_the_class(write_module: WriteModule) -> None:
    beside = GOOD.replace("    @staticmethod\n", "").replace("    def task(index", "    pass\ndef task(index")
    source = beside.split("def task")[0] + "    async def reset(self, task): ...\n    async def step(self, text): ...\n"
    name = write_module(source + "def task(index, purpose, seed): return {'index': index}\n")
    assert load_environment(f"{name}:Echo").task(4, "train", 0, {}) == {"index": 4}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("calculator", "module:Class"),
        ("no.such.module:Env", "no module 'no' on the path"),
        ("stages.env.calculater:Calculator", "no module 'stages.env.calculater' on the path"),
        ("stages.env.calculator:Calculater", "the module stages.env.calculator has no Calculater"),
        ("stages env:X", "stages env:X"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_by_name(path: str, said: str) -> None:
    with pytest.raises(EnvironmentNotFound, match=said):
        load_environment(path)


def test_a_dependency_that_the_users_module_lacks_is_told_from_the_module_itself(write_module: WriteModule) -> None:
    with pytest.raises(EnvironmentNotFound, match="its own import of 'absent_dependency' fails"):
        load_environment(f"{write_module('import absent_dependency')}:Env")


def test_a_module_with_a_syntax_error_is_refused_with_its_line(write_module: WriteModule) -> None:
    with pytest.raises(EnvironmentNotFound, match="line 1"):
        load_environment(f"{write_module('def :')}:Env")


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("async def step", "def step", "plain step; write `async def step"),
        ("async def step", "async def stop", "no method step"),
        ("reset(self, task)", "reset(self)", "cannot be called with 2 arguments"),
        ("def task(", "def tusk(", "no task source"),
        ("def task(index, purpose, seed, words=3)", "def task(index)", "cannot be called with 3 arguments"),
    ],
)
def test_a_class_of_another_shape_is_refused_with_what_to_write(write_module: WriteModule, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(EnvironmentShapeError, match=said):
        load_environment(f"{write_module(GOOD.replace(was, becomes))}:Echo")


def test_what_is_not_a_class_is_refused() -> None:
    with pytest.raises(EnvironmentShapeError, match="not a class"):
        load_environment("stages.env.arithmetic:compute")


def test_an_unknown_option_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(EnvironmentOptionError, match=r"did you mean 'max_calls'\?"):
        load_environment(CALCULATOR).check_options({"max_call": 3})


@pytest.mark.parametrize(
    ("path", "options"),
    [
        *((CALCULATOR, {"latency": value}) for value in ("gamma", ["none"])),
        *((CALCULATOR, {"max_calls": value}) for value in (0, -1, 2.5, True, "three")),
        *((CALCULATOR, {"largest": value}) for value in (1, -10, 20.5, True)),
        *((CALCULATOR, {"most_numbers": value}) for value in (1, -2, 9, 2.5)),
        *((CALCULATOR, {"tail_exponent": value}) for value in (math.nan, math.inf, 1e6, "2")),
        *((CALCULATOR, {"latency_median_s": value}) for value in (0, -1.0, math.nan)),
        *((CALCULATOR, {"latency_sigma": value}) for value in (-1.0, math.nan)),
        *((CALCULATOR, {"latency_scale": value}) for value in (-1.0, math.nan, "2")),
        *((CALCULATOR, {"latency_longest_s": value}) for value in (-1.0, math.nan)),
        *((GUESS, {"max_guesses": value}) for value in (0, -5, 2.5, True)),
        *((GUESS, {"highest": value}) for value in (4, -16, 16.5, 10_000)),
    ],
)
def test_a_wrong_value_of_an_option_is_refused_by_name_at_start_up(path: str, options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(EnvironmentOptionError, match=rf"^stages\.env\.options: {path} refuses its options: .*{name}"):
        load_environment(path).check_options(options)


@pytest.mark.parametrize("name", ["seed", "index", "purpose"])
def test_what_the_stage_itself_gives_is_no_option(name: str) -> None:
    with pytest.raises(EnvironmentOptionError, match=f"options.{name}: .*the stage itself gives it"):
        load_environment(CALCULATOR).check_options({name: 1})


def test_a_fault_without_options_is_not_blamed_on_them(write_module: WriteModule) -> None:
    source = GOOD.replace('return {"say"', 'raise ValueError("no problems left"); return {"say"')
    with pytest.raises(EnvironmentOptionError, match="fails when it draws a task: ValueError: no problems left"):
        load_environment(f"{write_module(source)}:Echo").check_options({})


def test_options_reach_the_class_and_the_task_source_each_by_its_parameters() -> None:
    loaded = load_environment(CALCULATOR)
    options = {"max_calls": 2, "largest": 10}
    loaded.check_options(options)
    assert "expression" in loaded.task(0, "train", 0, options)


def test_a_fingerprint_changes_with_the_source_and_only_then(write_module: WriteModule) -> None:
    first, again, other = (load_environment(f"{write_module(text)}:Echo") for text in (GOOD, GOOD, GOOD + "# new\n"))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.fingerprint == source_fingerprint(first.kind)
    assert len(first.fingerprint) == 16
