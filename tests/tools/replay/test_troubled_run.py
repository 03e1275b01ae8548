"""A run whose processes were killed while it was recorded is played like any other, whole and in part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import structlog

from broker.policy.registry import DEFAULT
from schemas.edges import Role
from tests.tools.replay.recorded import record
from tools.records import following
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.replay.asking import Asking
from tools.replay.command import Asked, run_replay
from tools.replay.recording import Recording
from tools.replay.selection import wanted_of
from tools.replay.staging import Scratch
from tools.replay.stretch import stretch_of
from tools.replay.whatif import decisions

pytestmark = pytest.mark.slow

KILLS = ((2, "actor-train-0"), (3, "broker"), (4, "rollout-0"), (5, "actor-train-0"), (6, "reward-0"), (7, "broker"), (7, "env-0"))
SETTINGS = ("schedule.steps=9", "stages.weight_sync.keep_versions=100", "stages.actor_train.keep_checkpoints=100")
STAGES = ("reward", "reference", "env", "weight-sync", "actor-train", "rollout")


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("troubled"), *SETTINGS, kills=KILLS)


@pytest.fixture(scope="module")
def late(troubled: Path) -> np.ndarray:
    """An episode near the run's end."""
    with pytest.MonkeyPatch.context() as patched, open_run(str(troubled)) as run, Look(run) as look:
        patched.setattr(following, "SNAPSHOT_ENTRIES", 100)
        look.catch_up()
        row: np.ndarray = look.all_rows(Selection(queue="samples"))[-20]
        return row


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def played(run: Path, stage: str, **asked: object) -> int:
    return run_replay(Asked(run=str(run), stage=stage, diff=True, in_process=True, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_answers_as_it_did_through_all_deaths(troubled: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(troubled, stage) == 0, capsys.readouterr().out


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_late_is_played_from_a_state_near_it(
    troubled: Path, late: np.ndarray, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    only = {"actor-train": "step:8", "weight-sync": "version:8"}.get(stage, f"{late['ticket']}")
    wanted = wanted_of(only, None, None)
    with open_run(str(troubled)) as run, Look(run) as look:
        scratch = Scratch(run)
        stretch = stretch_of(look, Role(stage), wanted, scratch.checkpoints())
        scratch.close()
    assert stretch.start is not None
    assert stretch.start.number > 100, "a state is kept that lies nearer than the run's start"
    assert played(troubled, stage, only=only) == 0, capsys.readouterr().out


@pytest.mark.parametrize("stage", STAGES)
def test_a_part_of_the_time_is_played(troubled: Path, late: np.ndarray, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin = float(late["at"]) - 15.0
    assert played(troubled, stage, begin=begin, end=begin + 15.0) == 0, capsys.readouterr().out


def test_the_recorded_policies_decide_as_they_did_through_all_deaths(troubled: Path) -> None:
    asking = Asking(DEFAULT, None)
    with open_run(str(troubled)) as run:
        recording = Recording(run.journal, asking.policies)
        found = list(decisions(run, recording, asking))
    assert recording.note == ""
    assert found
    assert not [dated for dated in found if dated.decision.differs]
