"""Answers go into a file that can be written, or nothing is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import ConfigError
from tools.replay.command import Asked, run_replay
from tools.replay.output import Output, check_output


@pytest.mark.parametrize("place", ["nowhere/answers", ".", "text/answers"])
def test_a_place_that_cannot_be_written_is_named_before_the_run_is_even_opened(tmp_path: Path, place: str) -> None:
    (tmp_path / "text").write_text("a file")
    path = tmp_path / place
    with pytest.raises(ConfigError, match=f"--output {path}: .*cannot be written"):
        run_replay(Asked(run=str(tmp_path / "no run"), stage="reward", output=path))


def test_a_file_that_can_be_written_is_left_as_it_is_until_the_first_answer(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("answers of yesterday")
    for path in (old, tmp_path / "new"):
        check_output(path)
    assert old.read_text() == "answers of yesterday"
    assert not (tmp_path / "new").exists()


def test_a_full_disk_ends_it_at_the_first_answer() -> None:
    check_output(Path("/dev/full"))
    with Output(Path("/dev/full")) as output, pytest.raises(ConfigError, match="--output /dev/full: No space left on device"):
        output.write(b"{}")
