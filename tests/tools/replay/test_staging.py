"""What a stage is played with: checkpoints, configuration and code of the recorded run, or why it cannot be."""

from __future__ import annotations

from pathlib import Path

from tools.records.opening import open_run
from tools.replay.staging import Scratch


def test_a_copy_of_a_checkpoint_is_none_of_the_runs(tmp_path: Path) -> None:
    for name in ("step-00000002", "step-00000003", "step-00000003 (copy)", "step-3"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "journal").mkdir()
    with open_run(str(tmp_path)) as run:
        scratch = Scratch(run)
        assert scratch.checkpoints() == [2, 3]
        scratch.close()
