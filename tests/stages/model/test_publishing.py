"""A published directory is there whole, under its name, and alone."""

from __future__ import annotations

from pathlib import Path

from stages.model.publishing import publish


def a_directory(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_what_was_written_aside_stands_under_its_name(tmp_path: Path) -> None:
    publish(a_directory(tmp_path / ".new", weights="1"), tmp_path / "step-1")
    assert {path.name for path in tmp_path.iterdir()} == {"step-1"}
    assert (tmp_path / "step-1" / "weights").read_text() == "1"


def test_an_older_one_of_that_name_is_replaced_with_all_its_files(tmp_path: Path) -> None:
    a_directory(tmp_path / "step-1", weights="old", other="old")
    a_directory(tmp_path / ".step-1.replaced", weights="older")  # of a writer that was killed
    publish(a_directory(tmp_path / ".new", weights="new"), tmp_path / "step-1")
    assert {path.name for path in tmp_path.iterdir()} == {"step-1"}
    assert {path.name for path in (tmp_path / "step-1").iterdir()} == {"weights"}
