"""What the pages of the documentation hold: files to write, commands to type, and what they print. Read from the Markdown itself.

    <!-- docs: docker: needs a Docker engine -->      a tag, invisible to readers: who runs the next block, and why not everybody
    ```console                                         commands after `$`, what is typed into them after a prompt, and what they print
    $ tidemill inspect runs/echo --failed
    ```
    ```sh ... ```                                      every line a command
    ```python                                          a file where the first line names one: `# my_env.py`
    ``` ... ```                                        a picture

Pure but for `pages()`. Does not know how anything is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
SHELLS = frozenset({"sh", "bash", "shell", "console"})
NAMED_FILE = re.compile(r"(?:#|//|;)\s*([\w./-]+\.(?:py|toml|txt|json|conf|yml|sh))\b")
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*)\s*$")
TAG = re.compile(r"^\s*<!--\s*docs:\s*(\w+)\s*:\s*(.+?)\s*-->\s*$")
PROMPT = re.compile(r"^(\(Pdb\)|>>>) ")
EXIT_CODE = re.compile(r"#.*\bexit code (\d+)")


class PageError(Exception):
    """A page that cannot be understood: where, and what to do."""


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is where it opens, `kind` and `reason` come from its tag."""

    page: str
    line: int
    language: str
    text: str
    kind: str = ""
    reason: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that the block is to be written to; empty where it names none."""
        found = NAMED_FILE.match(self.text)
        return found[1] if found and self.language not in SHELLS else ""


@dataclass
class Command:
    """One command of a block: what is typed into it, what it prints (some of it), and its exit code."""

    block: Block
    text: str
    typed: list[str] = field(default_factory=list)
    prints: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        found = EXIT_CODE.search(self.text)
        return int(found[1]) if found else 0


def pages() -> dict[str, str]:
    """Text of README.md and of every page of docs/, by its path in the house."""
    found = [HOUSE / "README.md", *sorted((HOUSE / "docs").rglob("*.md"))]
    return {str(path.relative_to(HOUSE)): path.read_text(encoding="utf-8") for path in found}


@cache
def blocks_of(page: str) -> tuple[Block, ...]:
    """The blocks of one page of the house."""
    return tuple(blocks(page, pages()[page]))


def blocks(page: str, text: str) -> Iterator[Block]:
    """All fenced blocks. Raises PageError where a fence does not close, or a tag has nothing to stand on."""
    tag, lines = None, enumerate(text.splitlines(), 1)
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            tag = _tag(page, number, line, tag)
            continue
        indent, fence, language = opening.groups()
        body: list[str] = []
        for _, inner in lines:
            if inner.strip() == fence:
                break
            body.append(inner.removeprefix(indent))
        else:
            raise PageError(f"{page}:{number}: the block never ends; close it with {fence}")
        yield Block(page, number, language, "\n".join(body), *(tag or ("", "")))
        tag = None


def _tag(page: str, number: int, line: str, before: tuple[str, str] | None) -> tuple[str, str] | None:
    found = TAG.match(line)
    if found:
        return found[1], found[2]
    if before and line.strip():
        raise PageError(f"{page}:{number}: the tag `docs: {before[0]}` belongs right above a block, and here is text")
    return before


def commands(block: Block) -> list[Command]:
    """The commands of a shell block; none of any other."""
    if block.language not in SHELLS:
        return []
    found: list[Command] = []
    for line in _joined(block.text):
        _read(block, line, found)
    return found


def _read(block: Block, line: str, found: list[Command]) -> None:
    if block.language != "console":
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(Command(block, line))
    elif line.startswith("$ "):
        found.append(Command(block, line.removeprefix("$ ")))
    elif not found:
        raise PageError(f"{block.where}: the console block begins with {line!r}; a command comes first, after `$ `")
    elif prompt := PROMPT.match(line):
        found[-1].typed.append(line.removeprefix(prompt[0]))
    elif line.strip():
        found[-1].prints.append(line)


def _joined(text: str) -> Iterator[str]:
    """Lines, those that end in a backslash with the next."""
    held = ""
    for line in text.splitlines():
        if line.endswith("\\"):
            held += line[:-1]
            continue
        yield held + line
        held = ""


def is_printed(shown: list[str], said: str) -> str:
    """Empty where all shown lines stand in what was said, in that order; else the first that does not.

    Numbers may be others, white space is one space, and `...` stands for anything.
    """
    said_lines = [_plain(line) for line in said.splitlines()]
    at = 0
    for line in shown:
        if line.strip() == "...":
            continue
        pattern = re.compile(_pattern(line))
        found = next((index for index in range(at, len(said_lines)) if pattern.search(said_lines[index])), None)
        if found is None:
            return line
        at = found + 1
    return ""


def _plain(text: str) -> str:
    return " ".join(text.split())


def _pattern(shown: str) -> str:
    pieces = re.split(r"(\.\.\.|…|\d+(?:\.\d+)*)", _plain(shown))
    return "".join(".*" if piece in ("...", "…") else r"[\d.]+" if piece[:1].isdigit() else re.escape(piece) for piece in pieces)
