"""A replay goes by the recorded configuration, and says what of it, or of what was set otherwise, cannot be gone by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.edges import Role
from schemas.errors import ConfigError
from tests.schemas.config.builders import a_config
from tools.records.opening import open_run
from tools.replay.command import Asked, run_replay
from tools.replay.configuration import replay_config, with_code
from tools.replay.whatif import Asked as Otherwise
from tools.replay.whatif import run_whatif


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory as far as its configuration goes."""
    directory = tmp_path / "run"
    (directory / "journal").mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(a_config(tmp_path).model_dump(mode="json")))
    return directory


# --- what is set otherwise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("a=b", "--set: a: unknown key; known here: run, pipeline"),
        ("schedule.step=3", "--set: schedule.step: unknown key; did you mean steps?"),
        ("schedule.steps=nan", "--set: schedule.steps = NaN: expected a whole number"),
        ("schedule.max_lag=-1", "--set: schedule.max_lag = -1: expected at least 0"),
        ("schedule=3", "--set: schedule = 3: expected a table"),
        ("schedule.steps.x=3", "--set schedule.steps.x=3: steps is not a table"),
    ],
)
def test_a_key_that_cannot_be_set_is_complained_of_as_up_does(run: Path, override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run_replay(Asked(run=str(run), stage="reward", overrides=(override,)))
    assert str(raised.value).startswith(complaint)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", ["-1", "nan", "soon"])
def test_a_constant_that_no_run_could_have_is_complained_of_alike(run: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set: schedule.max_lag = .*: expected (at least 0|a whole number)$"):
        run_whatif(Otherwise(run=str(run), overrides=(f"schedule.max_lag={value}",)))


# --- what was recorded -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "No such file"), ("", "is not JSON"), ('{"run": {"na', "is not JSON"), ("[]", "holds no configuration"),
        ("null", "holds no configuration"), ("{}", "pipeline is missing: The loop's name."), ("[" * 100_000, "is not JSON"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_not_as_it_was_written_is_named(run: Path, text: str | None, complaint: str) -> None:
    file = run / "config.json"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(ConfigError) as replayed:
        run_replay(Asked(run=str(run), stage="reward"))
    with pytest.raises(ConfigError) as asked:
        run_whatif(Otherwise(run=str(run), overrides=("schedule.max_lag=0",)))
    assert str(replayed.value) == str(asked.value)
    assert str(asked.value).startswith(f"{file}: {complaint}")
    assert "pydantic" not in str(asked.value)


# --- user code ---------------------------------------------------------------------------------------------------------------------


def code_of(run: Path, stage: Role, code: Path, named: str = "rew:reward") -> list[str]:
    """Folders of user code under `--code`."""
    with open_run(str(run)) as opened:
        config = replay_config(
            opened, (f"stages.reward.verifier={named}", f"stages.env.environment={named}", 'stages.reward.path=["then"]')
        )
    return [str(folder) for folder in with_code(config, stage, code)["stages"][stage]["path"]]


def test_code_is_a_folder_with_the_module_that_the_run_names_or_its_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "now" / "deep").mkdir(parents=True)
    for file in ("rew.py", "other.py", "deep/rew.py"):
        (tmp_path / "now" / file).write_text("")
    for code in (tmp_path / "now", tmp_path / "now" / "rew.py"):
        assert code_of(run, Role.REWARD, code) == [str(tmp_path / "now"), "then"]
        assert code_of(run, Role.ENV, code) == [str(tmp_path / "now")]
    for code in (tmp_path / "now", tmp_path / "now" / "deep" / "rew.py"):
        assert code_of(run, Role.ENV, code, "deep.rew:reward") == [str(tmp_path / "now")]


@pytest.mark.parametrize("code", ["pipeline.toml", "now/other.py", "now", "now/rew"])
def test_code_that_the_stage_would_not_load_is_refused(run: Path, tmp_path: Path, code: str) -> None:
    (tmp_path / "now" / "rew").mkdir(parents=True)
    (tmp_path / "now" / "other.py").write_text("")
    (tmp_path / "rew.py").write_text("beside what is given, and not it")
    with pytest.raises(ConfigError) as raised:
        code_of(run, Role.REWARD, tmp_path / code)
    assert f"--code {tmp_path / code}: has no module rew, and stages.reward.verifier of the run is rew:reward" in str(raised.value)


def test_code_for_a_stage_that_runs_none_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rew.py").write_text("")
    with pytest.raises(ConfigError, match="a rollout runs no user code; env and reward do"):
        run_replay(Asked(run=str(run), stage="rollout", code=tmp_path))
