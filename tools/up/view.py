"""What a person sees of a run: a live page on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.live import Live

from tools.up.lines import Lines
from tools.up.page import Page
from tools.up.snapshot import Snapshot


class View(Protocol):
    """Told what there is to see; decides what of it is shown, and when."""

    def show(self, snapshot: Snapshot, own: dict[str, int]) -> None:
        """A new status, and the pids of the processes that `tidemill up` started itself."""

    def note(self, text: str) -> None:
        """Something happened that the status does not say."""

    def close(self) -> None:
        """Nothing more comes."""


class LineView:
    """One line a step, or every few seconds: for logs and pipes."""

    def __init__(self, console: Console, lines: Lines) -> None:
        self._console, self._lines = console, lines

    def show(self, snapshot: Snapshot, own: dict[str, int]) -> None:
        """Prints what is new."""
        for line in self._lines.new(snapshot, time.monotonic()):
            self._print(line)

    def note(self, text: str) -> None:
        """Prints it."""
        self._print(text)

    def close(self) -> None:
        """Nothing to do: every line is out."""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveView:
    """A page at the foot of the terminal; what happens is printed above it and stays."""

    def __init__(self, console: Console, lines: Lines, page: Page) -> None:
        self._console, self._lines, self._page = console, lines, page
        # No thread of its own: processes are started beside it, and `show` comes often enough.
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, snapshot: Snapshot, own: dict[str, int]) -> None:
        """Draws the page anew; processes and evaluations are printed above it as they come."""
        now = time.monotonic()
        for line in self._lines.news(snapshot, now):
            self.note(line)
        self._live.update(self._page.of(snapshot, own, now), refresh=True)

    def note(self, text: str) -> None:
        """Prints it above the page."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leaves the last page standing."""
        self._live.stop()


def view_for(console: Console, stall_notice_s: float) -> View:
    """The view that suits where the output goes."""
    began = time.monotonic()
    lines = Lines(began, stall_notice_s)
    return LiveView(console, lines, Page(stall_notice_s)) if console.is_terminal else LineView(console, lines)
