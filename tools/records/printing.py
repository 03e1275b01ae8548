"""Lines of text on stdout, as they come, until nobody reads any more; and the end of a command whose stdout takes no more."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import ParamSpec

from schemas.errors import TidemillError
from tools.records.bar import Bar

Asked = ParamSpec("Asked")
NOT_PRINTED = 1
"""Exit code of a command whose answer did not get through."""


class NotPrintedError(TidemillError):
    """Stdout takes no more: a full disk behind it, a terminal that is gone."""


def say(line: str, *, flush: bool = False) -> None:
    """One line to stdout. Raises BrokenPipeError where the reader has gone, NotPrintedError where it cannot be written otherwise."""
    try:
        print(line, flush=flush)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NotPrintedError(f"stdout: {error.strerror}; what was printed is not all") from error


def all_out() -> None:
    """Everything that was said is out. Raises as `say` does."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NotPrintedError(f"stdout: {error.strerror}; what was printed is not all") from error


def printing(command: Callable[Asked, int]) -> Callable[Asked, int]:
    """A command that prints: where stdout takes no more, it ends with a line on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*arguments: Asked.args, **named: Asked.kwargs) -> int:
        if sys.stdout is None:  # closed by whoever started us
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        try:
            code = command(*arguments, **named)
            all_out()
        except NotPrintedError as error:
            _give_up_stdout()
            print(f"tidemill: {error}", file=sys.stderr)
            return NOT_PRINTED
        return code

    return run


def quietly(write: Iterable[str], bar: Bar | None = None) -> int:
    """Prints lines as they come; a reader that has seen enough ends it without a complaint."""
    written(write, bar)
    return 0


def written(write: Iterable[str], bar: Bar | None = None) -> bool:
    """As `quietly`; False where the reader went before the end. The first line is out at once, a terminal's others too."""
    follows = bar is not None and sys.stdout.isatty()
    try:
        for number, line in enumerate(write):
            if bar is not None:
                bar.clear()
            say(line, flush=follows or not number)
        all_out()
    except BrokenPipeError:
        _give_up_stdout()
        return False
    return True


def _give_up_stdout() -> None:
    """What is still held for it goes nowhere: at the end Python would try again, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
