"""A process that the system would not start is told of with what, where and what to do."""

import errno
import os
import sys
from pathlib import Path

import pytest

from stages.host.children import Children, why_not_started


@pytest.mark.parametrize(("number", "mend"), [(errno.EAGAIN, "ulimit -u"), (errno.ENOSPC, "free space"), (errno.EACCES, "who owns it")])
def test_an_error_of_the_system_comes_with_what_to_do(number: int, mend: str) -> None:
    said = why_not_started(OSError(number, os.strerror(number)))
    assert said.startswith(os.strerror(number))
    assert mend in said
    assert "None" not in said, "an error that names no file"


def test_an_unknown_error_is_told_as_the_system_tells_it() -> None:
    assert why_not_started(FileNotFoundError(errno.ENOENT, "No such file or directory", "/nope")) == "No such file or directory: /nope"
    assert why_not_started(OSError("no number")) == "no number"


def test_a_log_folder_that_is_none_starts_nothing_and_has_no_last_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    children = Children(tmp_path / "logs")
    try:
        with pytest.raises(OSError, match="File exists"):
            children.start("one", (sys.executable, "-c", ""))
        assert children.living == {}
        assert children.last_lines("one") == ()
    finally:
        children.close()


def test_a_run_directory_that_was_deleted_is_not_made_again_by_a_restart(tmp_path: Path) -> None:
    children = Children(tmp_path / "run" / "logs")
    try:
        with pytest.raises(FileNotFoundError):
            children.start("one", (sys.executable, "-c", ""))
    finally:
        children.close()
    assert not (tmp_path / "run").exists()
