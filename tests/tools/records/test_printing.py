"""What a command has to say comes through, or it says that it did not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.records.recorded import HOUSE, entries_of, write_run

COMMANDS = (
    *(("inspect", "RUN"), ("inspect", "RUN", "--json"), ("inspect", "RUN", "--queue", "turns"), ("inspect", "RUN", "--failed")),
    *(("inspect", "RUN", "--record", "60", "--json"), ("inspect", "RUN", "--slowest", "2"), ("inspect", "RUN", "--episode", "9")),
    *(("story", "ticket:9", "RUN"), ("story", "step:1", "RUN", "--json"), ("cut", "RUN", "CUT", "--around", "ticket:9")),
    *(("whatif", "RUN", "--policy", "placement=least_in_flight"), ("whatif", "RUN", "--policy", "placement=least_in_flight", "--json")),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("printed") / "run", entries_of())


def ended(run: Path, cut: Path, arguments: tuple[str, ...], redirection: str) -> tuple[int, str]:
    """Exit code, and what stood on stderr, of a command whose stdout is redirected by the shell."""
    given = [{"RUN": str(run), "CUT": str(cut)}.get(argument, argument) for argument in arguments]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, str(HOUSE / "tools" / "__main__.py"), *given]
    done = subprocess.run(shell, cwd=HOUSE, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_stdout_that_is_full_is_one_line_and_exit_code_1(run: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, said = ended(run, tmp_path / "out.tide", arguments, ">/dev/full")
    assert (code, said) == (1, "tidemill: stdout: No space left on device; what was printed is not all\n")


@pytest.mark.parametrize("arguments", [COMMANDS[0], COMMANDS[7], COMMANDS[10]])
def test_a_stdout_that_is_closed_is_nobodys_mistake(run: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert ended(run, tmp_path / "out.tide", arguments, ">&-") == (0, "")
