"""A run that an older version recorded: its stages are played where its records can be read, and refused in plain words where not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.tools.records.older import older_house, python
from tools.replay.command import Asked, run_replay
from tools.replay.errors import ReplayError

pytestmark = pytest.mark.slow

SETTINGS = ("schedule.steps=1", "schedule.groups_per_step=2", "schedule.members=4", "evaluation.problems=4", "run.directory=runs")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    house = older_house(folder / "house")
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    python(
        house, "-m", "tools", "up", str(house / "compose/pipelines/calculator.toml"), "--name", "old", *settings, cwd=folder, timeout=300
    )
    return folder / "runs" / "old"


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def played(run: Path, stage: str) -> int:
    return run_replay(Asked(run=str(run), stage=stage, diff=True, in_process=True))


def test_a_record_that_had_a_field_more_is_played_and_that_is_said(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(older, "env") == 0
    said = capsys.readouterr()
    assert "recorded under another schema.lock: episode, sample had other fields" in said.err


def test_a_record_that_cannot_be_read_any_more_is_refused_with_its_name(older: Path) -> None:
    with pytest.raises(ReplayError, match=r"the recorded answer in entry \d+ was written under another schema.lock.*reward_parts"):
        played(older, "reward")
    with pytest.raises(ReplayError, match=r"sample of session \S+ .* was written under another schema.lock.*reward_parts"):
        played(older, "reference")
