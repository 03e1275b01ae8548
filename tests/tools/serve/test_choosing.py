"""Which run is served when the same command is given again: the table of the page, row by row."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from schemas.config import PipelineConfig
from schemas.errors import ConfigError
from tests.schemas.config.builders import a_config
from tools.serve.choosing import Chosen, choose
from tools.up.directory import new_run_directory

ENDS = {"done": {"ended": "done"}, "stopped": {"ended": "stopped"}, "failed": {"ended": "failed"}}
NEW = Chosen()


def a_run(folder: Path, *overrides: str) -> PipelineConfig:
    return a_config(folder, f"run.directory={folder / 'runs'}", *overrides)


def begun(folder: Path, name: str, ended: str = "", at: int = 0) -> Path:
    """A run that was begun at second `at`, and how it ended."""
    path = new_run_directory(a_run(folder, f"run.name={name}"))
    if ended:
        (path / "summary.json").write_text(json.dumps(ENDS[ended]))
    os.utime(path / "config.json", (at, at))
    return path


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["", "first"])
def test_the_first_run_is_a_new_one(tmp_path: Path, name: str, resume: bool) -> None:
    assert choose(a_run(tmp_path, f'run.name="{name}"'), resume=resume) == NEW


@pytest.mark.parametrize(
    ("ended", "name", "resume", "goes_on", "over"),
    [
        ("", "", False, True, ""),
        ("", "first", False, True, ""),
        ("done", "", False, False, ""),
        ("done", "", True, False, ""),
        ("done", "first", False, True, "done"),
        ("done", "first", True, True, "done"),
        ("stopped", "", False, False, ""),
        ("stopped", "", True, True, ""),
        ("stopped", "first", False, True, "stopped"),
        ("stopped", "first", True, True, ""),
        ("failed", "", False, True, "failed"),
        ("failed", "", True, True, ""),
        ("failed", "first", False, True, "failed"),
        ("failed", "first", True, True, ""),
    ],
)
def test_the_same_command_again(tmp_path: Path, ended: str, name: str, resume: bool, goes_on: bool, over: str) -> None:
    path = begun(tmp_path, "first", ended)
    config = a_run(tmp_path, "run.name=first" if name else 'run.name=""')
    assert choose(config, resume=resume) == Chosen(path if goes_on else None, over)


def test_without_a_name_the_newest_run_decides(tmp_path: Path) -> None:
    begun(tmp_path, "b", at=1)
    newest = begun(tmp_path, "a", "failed", at=2)
    assert choose(a_run(tmp_path), resume=False) == Chosen(newest, "failed")


def test_runs_of_other_pipelines_are_not_looked_at(tmp_path: Path) -> None:
    begun(tmp_path, "first")
    assert choose(a_run(tmp_path, "pipeline.name=other"), resume=False) == NEW


def test_folders_that_are_no_runs_are_passed_over(tmp_path: Path) -> None:
    for name, text in (("broken", "{"), ("strange", "[]")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text(text)
    assert choose(a_run(tmp_path), resume=False) == NEW


def test_a_run_goes_on_under_its_own_configuration_or_not_at_all(tmp_path: Path) -> None:
    begun(tmp_path, "first")
    with pytest.raises(ConfigError, match="run 'first' has not reached its steps.*schedule.steps is 7 now, but 24"):
        choose(a_run(tmp_path, "schedule.steps=7"), resume=False)
