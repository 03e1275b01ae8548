"""The terminal of the documentation's tests does not let a false page pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks, is_printed
from tests.docs.terminal import terminal


def typed(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with terminal(folder, short=True) as at:
        for block in blocks("a.md", text):
            at.do(block)


def test_a_command_that_fails_or_prints_otherwise_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit code 3, and the page says 0"):
        typed(tmp_path, "```console\n$ (exit 3)\n```\n")


def test_what_is_not_printed_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the page says that it prints"):
        typed(tmp_path, "```console\n$ echo one\ntwo\n```\n")


def test_files_are_written_and_the_shell_goes_on_where_it_was(tmp_path: Path) -> None:
    page = (
        "```toml\n# in/here.toml\n[x]\n```\n"
        "```console\n$ cd in && export A=3\n$ grep -c . here.toml && echo $A\n2\n4\n$ cat\n>>> hello\nhello\n```\n"
    )
    typed(tmp_path, page)


def test_a_fenced_picture_is_not_run(tmp_path: Path) -> None:
    typed(tmp_path, "```\nfalse\n```\n")


@pytest.mark.parametrize(
    ("shown", "said", "missing"),
    [
        (["reward 0.25 ..."], "step 1\nreward   0.5  lag 0", ""),
        (["b", "a"], "a\nb", "a"),
        (["...", "a", "...", "b"], "a\nc\nb", ""),
        (["reward"], "punishment", "reward"),
    ],
)
def test_numbers_may_differ_and_words_may_not(shown: list[str], said: str, missing: str) -> None:
    assert is_printed(shown, said) == missing


def test_a_file_is_named_by_its_first_line() -> None:
    assert Block("a.md", 1, "python", "# my_env.py\nimport x").file == "my_env.py"
    assert Block("a.md", 1, "python", "import x").file == ""
