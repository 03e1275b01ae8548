"""No command of the documentation goes unrun, and nothing that looks like one hides from those who run it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from schemas.config import PipelineConfig
from tests.docs.pages import HOUSE, SHELLS, Block, PageError, blocks, blocks_of, commands, pages
from tests.docs.test_pages import REPLAY
from tests.tools.replay.test_recorded_run import commands_of_the_page
from tools.command import app

RUNNERS = {
    "": "test_pages.py",
    "slow": "test_pages.py",
    "ci": "test_pages.py",
    "hosts": "test_many_hosts.py",
    "docker": "test_docker.py",
}
"""Who runs the blocks of each kind of tag, in this folder."""
FRAGMENT = "fragment"
"""The one tag that runs nothing: a piece of a file, in a block that is no shell's."""
PROGRAMS = ("tidemill", "make", "docker", "ssh", "scp", "git", "pip", "python", "python3", "sudo", "source", "export", "cd", "kill", "curl")
LOOKS_LIKE_A_COMMAND = re.compile(rf"^\s*(?:\$ |(?:\S*/)?(?:{'|'.join(PROGRAMS)})(?: [-\w./]|$))")
SPAN = re.compile(r"(?<!`)`(tidemill|make) ([^`]+)`")
ALL_BLOCKS = [block for page in pages() for block in blocks_of(page)]


def complaints(block: Block) -> Iterator[str]:
    """What is wrong with a block."""
    if block.kind == FRAGMENT and block.language in SHELLS:
        yield f"the tag `{FRAGMENT}` is for pieces of files; a command is run by somebody: {', '.join(filter(None, RUNNERS))}"
    elif block.kind not in (*RUNNERS, FRAGMENT):
        yield f"nobody runs blocks with the tag `docs: {block.kind}`; there are {', '.join(filter(None, RUNNERS))}"
    if block.language in SHELLS and not commands(block):
        yield "a shell block without a command; write it as `$ command`, or as a block without a language"
    if block.language not in SHELLS and not block.file:
        yield from _hidden(block)
    if block.language == "python":
        yield from _broken(block, ast.parse, SyntaxError)
    if block.language == "toml":
        yield from _broken(block, lambda text: _known_keys(tomllib.loads(text), PipelineConfig), (tomllib.TOMLDecodeError, KeyError))


def _hidden(block: Block) -> Iterator[str]:
    for line in block.text.splitlines():
        if LOOKS_LIKE_A_COMMAND.match(line):
            yield f"{line.strip()!r} looks like a command and is not run; put it into a `console` or `sh` block"
    if block.language in ("python", "toml") and block.kind != FRAGMENT:
        yield "name the file in its first line (`# my_env.py`), or tag the block `docs: fragment: reason`"


def _broken(block: Block, read: Any, error: Any) -> Iterator[str]:
    try:
        read(block.text)
    except error as problem:
        yield f"cannot be read: {problem}"


def _known_keys(table: dict[str, Any], model: type[BaseModel]) -> None:
    """Raises KeyError for a key that the configuration does not have. Tables that are no part of it (hosts.toml) are passed over."""
    for key, value in table.items():
        if key not in model.model_fields:
            if model is PipelineConfig:
                continue
            raise KeyError(f"{model.__name__} has no {key}")
        kind = model.model_fields[key].annotation
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            _known_keys(value, kind)


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=lambda block: block.where)
def test_every_block_is_run_written_or_drawn(block: Block) -> None:
    assert list(complaints(block)) == []


def test_every_kind_of_tag_has_tests_of_its_own() -> None:
    for kind, file in RUNNERS.items():
        assert f'"{kind}"' in (HOUSE / "tests" / "docs" / file).read_text(encoding="utf-8"), f"{file} does not run `{kind}`"


def test_the_walk_through_of_a_hunt_is_run_where_its_run_is_recorded() -> None:
    mine = [command.text.removeprefix("tidemill ").partition("#")[0].strip() for block in blocks_of(REPLAY) for command in commands(block)]
    assert mine == [command for command, _, _ in commands_of_the_page()]


@pytest.mark.parametrize("page", pages())
def test_commands_in_running_text_exist_with_their_options(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (HOUSE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for program, arguments in SPAN.findall(pages()[page]):
        words = arguments.split()
        if program == "make":
            assert words[0] in targets, f"{page}: `make {arguments}`"
        else:
            _assert_known(page, words)


def _assert_known(page: str, words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    names = [alternative for word in words[:1] for alternative in word.split("|")]
    for name in names:
        found = command.commands.get(name)
        assert found is not None, f"{page}: there is no `tidemill {name}`"
        if hasattr(found, "commands") and len(words) > 1:
            found = found.commands.get(words[1].split("|")[0])
            assert found is not None, f"{page}: there is no `tidemill {' '.join(words[:2])}`"
        options = {option for parameter in found.params for option in parameter.opts}
        for word in words:
            known = not word.startswith("--") or word in options or found.context_settings.get("ignore_unknown_options")
            assert known, f"{page}: `tidemill {' '.join(words)}`: no option {word}"


@pytest.mark.parametrize("page", pages())
def test_every_link_to_a_file_leads_to_one(page: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", pages()[page]):
        if not target.startswith(("http:", "https:")):
            assert ((HOUSE / page).parent / target).exists(), f"{page}: {target} is not there"


A_PAGE = """
text
<!-- docs: moon: needs a rocket -->
```console
$ tidemill fly
```

```
tidemill up x.toml
```
"""


def test_an_untagged_command_and_an_unknown_tag_are_found() -> None:
    flying, hidden = blocks("a.md", A_PAGE)
    assert any("nobody runs" in complaint for complaint in complaints(flying))
    assert any("looks like a command" in complaint for complaint in complaints(hidden))
    with pytest.raises(PageError, match="never ends"):
        list(blocks("a.md", "```sh\nls\n"))
    with pytest.raises(PageError, match="right above a block"):
        list(blocks("a.md", "<!-- docs: slow: long -->\nbut text\n```sh\nls\n```\n"))
