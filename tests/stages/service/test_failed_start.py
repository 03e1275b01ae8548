"""A stage that cannot start says why in its own words: closing it adds nothing to them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.actor_train.stage import ActorTrain
from stages.blobs.stage import BlobStage
from stages.env.stage import Env
from stages.host.stage import Host, stage_command
from stages.reference.stage import Reference
from stages.reward.stage import Reward
from stages.rollout.stage import Rollout
from stages.service.stage import Stage
from stages.weight_sync.stage import WeightSync
from tests.skeleton.broker_process import HOUSE
from tests.skeleton.scripted_broker import a_scripted_broker

STAGES: dict[str, Callable[[], Stage]] = {
    "actor-train": ActorTrain,
    "blobs": lambda: BlobStage("", ""),
    "env": Env,
    "host": lambda: Host(stage_command("", "")),
    "reference": Reference,
    "reward": Reward,
    "rollout": Rollout,
    "weight-sync": WeightSync,
}


@pytest.mark.parametrize("role", STAGES)
def test_a_stage_may_be_closed_whose_start_came_to_nothing(role: str) -> None:
    STAGES[role]().close()


@pytest.mark.parametrize("place", ["a file", "/proc/nope"])
def test_a_host_that_can_write_nowhere_says_so_in_a_line_and_ends_with_2(place: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    directory = str(file) if place == "a file" else place
    with a_scripted_broker() as broker:
        command = [sys.executable, "-P", "-m", "stages.host", "--broker", broker.endpoint, "--directory", directory]
        process = subprocess.Popen(command, cwd=HOUSE, stderr=subprocess.PIPE, text=True)
        try:
            broker.welcome()
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 2, said
    assert f"--directory {directory}: cannot be used" in said
    assert "Traceback" not in said
