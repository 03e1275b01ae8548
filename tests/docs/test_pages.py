"""Each command of README.md and docs/ does what its page says: typed in order, in real processes, in an empty folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import HOUSE, Block, blocks_of, commands, pages
from tests.docs.terminal import Terminal, terminal

CHECKOUT = ("Makefile", "pyproject.toml", "constraints.txt", "compose")
"""What README.md needs of the folder that it is read in; the pages of docs/ begin in an empty one."""
REPLAY = "docs/replay.md"
"""Run by tests/tools/replay/test_recorded_run.py, on a run that is recorded for it."""


def pages_to_run(*kinds: str) -> list[str]:
    """Pages with at least one command of these kinds."""
    return [page for page in pages() if page != REPLAY and any(block.kind in kinds and commands(block) for block in blocks_of(page))]


def a_folder(page: str, parent: Path) -> Path:
    folder = parent / "work"
    folder.mkdir()
    if page == "README.md":
        for name in CHECKOUT:
            source = HOUSE / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return folder


def do(blocks: list[Block], at: Terminal) -> None:
    for block in blocks:
        at.do(block)


@pytest.mark.parametrize("page", pages_to_run(""))
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    with terminal(a_folder(page, tmp_path), short=True) as at:
        do([block for block in blocks_of(page) if block.kind == ""], at)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_to_run("", "slow"))
def test_a_page_does_what_it_says_at_its_full_length(page: str, tmp_path: Path) -> None:
    with terminal(a_folder(page, tmp_path), short=False) as at:
        do([block for block in blocks_of(page) if block.kind in ("", "slow")], at)


def test_what_ci_is_said_to_run_it_runs() -> None:
    script = (HOUSE / ".ci" / "run").read_text(encoding="utf-8").replace("make -s ", "make ")
    said = [command for page in pages() for block in blocks_of(page) if block.kind == "ci" for command in commands(block)]
    assert said
    for command in said:
        target = " ".join(command.text.partition("#")[0].split()[:2])
        assert target in script, f"{command.block.where}: .ci/run does not run `{target}`"
        subprocess.run(["make", "-n", *command.text.partition("#")[0].split()[1:]], cwd=HOUSE, check=True, capture_output=True)
