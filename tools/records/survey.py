"""The survey: which segments are scanned, in what order and by whom, so that rows come out in the journal's order from the first moment on.

Promises: a segment that nobody asks for is not read; what is scanned is saved segment by segment. Where much is to be read, other
processes scan ahead while the first segment's rows are already being looked at; they end with the survey.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from broker.journal import format as layout
from broker.journal.format import Position
from broker.journal.reading import Damage, segment_head
from broker.journal_files import segment_path
from broker.lifeline import child_environment
from tools.records import rows as lean
from tools.records.index import Index, head_of
from tools.records.progress import SCANNING, Progress, Way
from tools.records.rows import Names
from tools.records.scanning import Part, Scanning, read_part
from tools.records.tables import Segment

AHEAD_BYTES = 128 << 20
"""From so much on, others help: to start one takes as long as to scan some 50 MB."""
HELPERS_MOST = 7


class Helpers:
    """Processes that scan segments ahead. `part` waits for a segment's; None where it came to nothing."""

    def __init__(self, index: Index, segments: Sequence[int]) -> None:
        self._folder = index.directory
        count = min(HELPERS_MOST, len(os.sched_getaffinity(0)) - 1, len(segments) - 1)
        self._of: dict[int, subprocess.Popen[str]] = {}
        self._all: list[subprocess.Popen[str]] = []
        for helper in range(count):
            share = segments[helper + 1 :: count + 1]
            process = _start(index.journal, index.directory, share)
            self._all.append(process)
            self._of |= dict.fromkeys(share, process)

    def part(self, segment: int) -> Part | None:
        process = self._of.get(segment)
        if process is None or process.stdout is None:
            return None
        for line in process.stdout:
            if line.strip() == str(segment):
                return read_part(self._folder, segment)
        return None

    def close(self) -> None:
        for process in self._all:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _start(journal: Path, folder: Path, segments: Sequence[int]) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "tools.records.scanning", str(journal), str(folder), *map(str, segments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=child_environment())


class Survey:
    """Over one index."""

    def __init__(self, index: Index, progress: Progress | None = None) -> None:
        self._index, self._meta = index, index.meta
        self._way = Way(index.sizes(), progress, SCANNING)
        self._queues, self._clients = Names(self._meta.queues, lean.QUEUES_MOST), Names(self._meta.clients, lean.CLIENTS_MOST)

    def run(self, segments: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Blocks of new rows of these segments, in order, each with its segment. Raises FileNotFoundError where one is gone."""
        left = self._index.unscanned()
        whole = [segment for segment in segments if self._index.known(segment) is None and segment != max(left, default=0)]
        helped = self._index.writes and sum(left.get(segment, 0) for segment in whole) > AHEAD_BYTES and len(whole) > 1
        with closing(Helpers(self._index, whole if helped else whole[:1])) as helpers:
            for segment in segments:
                part = helpers.part(segment)
                if part is not None and segment_head(segment_path(self._index.journal, segment)) is not None:
                    yield segment, self._adopt(part)
                    self._way.say(segment, part.segment.until)
                else:
                    for rows in self._scan(segment):
                        yield segment, rows

    def _scan(self, segment: int) -> Iterator[np.ndarray]:
        known = self._index.known(segment)
        if known is None:
            known = Segment(index=segment, head=head_of(segment_path(self._index.journal, segment)))
        scanning = Scanning(self._index.journal, known, self._index.column(segment), self._queues, self._clients)
        before = self._index.known(segment - 1)
        headless = segment_head(segment_path(self._index.journal, segment)) is None
        for rows in scanning.run(before.next if headless and before is not None else None):
            if scanning.position is not None:
                self._way.say(segment, scanning.position.offset)
            yield rows
        self._take(scanning.segment)

    def _adopt(self, part: Part) -> np.ndarray:
        """What another process scanned, under this index's numbers for names."""
        rows = self._index.rows(part.segment)
        queues = np.array([self._queues.number(name) for name in part.queues] or [0], np.uint8)
        clients = np.array([self._clients.number(name) for name in part.clients] or [0], np.uint16)
        if list(queues) != list(range(len(queues))) or list(clients) != list(range(len(clients))):
            renamed = np.array(rows)
            renamed["queue"], renamed["client"] = queues[rows["queue"]], clients[rows["client"]]
            self._index.column(part.segment.index).write(0, renamed.tobytes())
            rows = renamed
        self._take(part.segment)
        return rows

    def _take(self, segment: Segment) -> None:
        self._index.put(segment)
        for index in (segment.index, segment.index + 1):
            before, after = self._index.known(index - 1), self._index.known(index)
            if before is not None and after is not None and (foreign := _foreign(before, after)) not in (None, *after.damages):
                after.damages.insert(0, str(foreign))
        self._index.save()


def _foreign(before: Segment, after: Segment) -> str | None:
    """Where a segment was not written behind the one before it."""
    head = layout.parse_segment_head(after.head)
    if head is None or not head.previous or before.previous in (None, head.previous) or before.next != head.first:
        return None
    what = "this does not follow what stands before it; was a file put here from elsewhere?"
    return str(Damage(Position(after.index, 0), 0, 0, -1, what, foreign=True))
