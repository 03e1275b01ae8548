"""Types a page's commands, in order, into a shell in a folder of its own; real processes, the real command line.

What `cd` and `export` change lasts from one command to the next. What is left running at the end is ended, by pid.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.docs.pages import Block, Command, commands, is_printed

PATIENCE_S = 400
SHORT = ("schedule.steps=2", "schedule.groups_per_step=4", "schedule.members=4", "evaluation.problems=16")
"""What `tidemill up` is told besides where a page is to be run in seconds."""
MARK = "TIDEMILL_DOCS_TERMINAL"


class Terminal:
    """A shell for one page. `short`: runs are cut short. Files of the house that the page needs stand in `folder` already."""

    def __init__(self, folder: Path, *, short: bool) -> None:
        self._folder, self._state, self._mark = folder, folder.parent / f"{folder.name}.state", uuid.uuid4().hex
        tools = folder.parent / f"{folder.name}.bin"
        _write_programs(tools, short=short)
        if (folder / "Makefile").is_file():
            _pretend_installed(folder, tools)
        home = folder.parent / f"{folder.name}.home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMILL", "COV", "PYTEST", "MAKE"))}
        path = f"{tools}:{os.environ['PATH']}"
        self._environment = {**kept, "PATH": path, "HOME": str(home), "TERM": "dumb", "COLUMNS": "160", MARK: self._mark}

    @property
    def python(self) -> str:
        """The interpreter that its `tidemill` runs in."""
        return sys.executable

    def do(self, block: Block) -> None:
        """Writes the file or types the commands of a block. Raises AssertionError where one does not do what the page says."""
        if block.file:
            place = self._folder / block.file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.text + "\n", encoding="utf-8")
        for command in commands(block):
            self._type(command)

    def _type(self, command: Command) -> None:
        output = self._folder.parent / f"{self._folder.name}.out"
        with output.open("wb") as said:
            done = subprocess.run(
                ["bash", "-c", self._script(command.text)], cwd=self._folder, env=self._environment, stdout=said, stderr=subprocess.STDOUT,
                input="".join(f"{line}\n" for line in command.typed).encode(), timeout=PATIENCE_S, check=False,
            )  # fmt: skip
        text = output.read_text(errors="replace")
        told = f"{command.block.where}: $ {command.text}\n{text}"
        assert done.returncode == command.exit_code, f"exit code {done.returncode}, and the page says {command.exit_code}\n{told}"
        missing = is_printed(command.prints, text)
        assert not missing, f"the page says that it prints\n    {missing}\nand it does not, or not after the lines before it\n{told}"

    def _script(self, command: str) -> str:
        """The command between the state of before and the state for the next one."""
        state = f"'{self._state}'"
        return f"[ -f {state} ] && . {state}\n{command}\ncode=$?\n{{ export -p; echo cd \"'$PWD'\"; }} > {state}\nexit $code"

    def close(self) -> None:
        """Ends what the page left running."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    process.send_signal(signal.SIGKILL)


@contextmanager
def terminal(folder: Path, *, short: bool) -> Iterator[Terminal]:
    """A terminal, and nothing of it afterwards."""
    opened = Terminal(folder, short=short)
    try:
        yield opened
    finally:
        opened.close()


def _write_programs(tools: Path, *, short: bool) -> None:
    """`tidemill` and `python` of the interpreter that runs the tests."""
    tools.mkdir()
    _write_program(tools / "python", [sys.executable])
    settings = [part for setting in SHORT for part in ("--set", setting)] if short else []
    _write_program(tools / "tidemill", [sys.executable, "-P", "-m", "tools"], settings)


def _write_program(file: Path, command: Sequence[str], for_up: Sequence[str] = ()) -> None:
    plain = " ".join(f"'{word}'" for word in command)
    added = " ".join(f"'{word}'" for word in for_up)
    # Before the page's own settings: what a page says counts.
    up = f'if [ "$1" = up ]; then exec {plain} up {added} "${{@:2}}"; fi\n' if for_up else ""
    file.write_text(f'#!/bin/bash\n{up}exec {plain} "$@"\n')
    file.chmod(0o755)


def _pretend_installed(folder: Path, tools: Path) -> None:
    """A `.venv` that `make` takes for installed, of the same programs: what a checkout has after `make install`."""
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    for program in tools.iterdir():
        (bin_folder / program.name).symlink_to(program)
    (bin_folder / "activate").write_text(f'export PATH="{bin_folder}:$PATH"\n')
    (folder / ".venv" / ".installed").touch()
