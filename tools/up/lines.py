"""A run as lines of text: what is new since the last status. Pure; remembers what it has said."""

from __future__ import annotations

from tools.up.facts import EMPTY, clock, evaluation_under_way, facts, progress_line, queue_depths, result_line, stall_lines, where
from tools.up.pace import Pace
from tools.up.snapshot import ProcessRow, Snapshot

QUIET_S = 5.0
"""Without a new step a line comes this often, so that a log shows life without drowning in it."""


class Lines:
    """`began`: when the command was given, on the clock of every `now`."""

    def __init__(self, began: float, stall_notice_s: float) -> None:
        self._began, self._stall_notice_s = began, stall_notice_s
        self._pace = Pace()
        self._states: dict[str, tuple[str, int]] = {}
        self._evaluated: set[int] = set()
        self._step = 0
        self._phase = ""
        self._said_at = began

    def new(self, snapshot: Snapshot, now: float) -> list[str]:
        """News; and a line on progress with each step, or when it was quiet for long."""
        self._pace.saw(snapshot.step, now)
        lines = self.news(snapshot, now)
        quiet = now - self._said_at >= QUIET_S
        if snapshot.step > self._step or quiet:
            lines.append(self._progress(snapshot, now))
            lines += stall_lines(snapshot, self._stall_notice_s) if quiet else []
            self._step, self._said_at = snapshot.step, now
        return lines

    def news(self, snapshot: Snapshot, now: float) -> list[str]:
        """Processes that came, became ready or went; phases; results of evaluations."""
        lines = [line for row in snapshot.processes for line in self._process(row, snapshot, now)]
        for row in snapshot.evaluation:
            if row.done and row.version not in self._evaluated:
                self._evaluated.add(row.version)
                lines.append(result_line(row))
        if snapshot.phase != self._phase:
            self._phase = snapshot.phase
            lines.append(f"{clock(now - self._began)} {snapshot.phase}")
        return lines

    def _process(self, row: ProcessRow, snapshot: Snapshot, now: float) -> list[str]:
        before, self._states[row.name] = self._states.get(row.name), (row.state, row.pid)
        if before == (row.state, row.pid):
            return []
        place = where(row, snapshot) or "all cores"
        if row.state == "ready":
            after = max(0.0, now - self._began - row.since_s)
            return [f"{row.name}: {row.role}, process {row.pid}, {place}, ready after {after:.1f} s"]
        return [f"{row.name}: {row.state}"] if before is not None and not snapshot.ending else []

    def _progress(self, snapshot: Snapshot, now: float) -> str:
        playing = evaluation_under_way(snapshot)
        if playing is not None and not snapshot.step:
            return progress_line(playing)
        left_s = self._pace.left_s(snapshot.steps, now)
        pairs = [*facts(snapshot, left_s), *((name, depth) for name, depth in queue_depths(snapshot) if depth != EMPTY)]
        numbers = "  ".join(f"{name} {value}" for name, value in pairs)
        return f"step {snapshot.step}/{snapshot.steps}  {numbers}".rstrip()
