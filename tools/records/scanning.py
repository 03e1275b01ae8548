"""Scanning one segment: a row for each record in it, read from headers alone, without the broker's core.

Reads the journal as a reader does: no lock, nothing written into segments. Promises: what a scan left off is gone on with from there; a
torn tail is not taken and is looked at again. As a process (`python -m tools.records.scanning JOURNAL FOLDER SEGMENT...`) it scans
segments for another reader: rows into FOLDER, what is known of a segment into `NNNNNNNN.part`, its number on stdout when it is done.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from broker.journal.format import BLOCK, Entry, Position
from broker.journal.reading import Damage, Scan
from broker.journal_files import segment_path
from broker.lifeline import die_with_parent
from tools.records import rows as lean
from tools.records.columns import Column
from tools.records.index import head_of, rows_file
from tools.records.rows import DAMAGED, ROW, Names
from tools.records.tables import Segment, Totals

BLOCK_ROWS = 4096
"""Rows that are handed on at once: some hundredths of a second's work."""


class Part(msgspec.Struct):
    """What a scanning process found: the segment, and the names behind its numbers."""

    segment: Segment
    queues: list[str]
    clients: list[str]


class Scanning:
    """One pass over one segment. `segment` afterwards: what is known of it."""

    def __init__(self, journal: Path, known: Segment, column: Column, queues: Names, clients: Names) -> None:
        self._journal, self._column = journal, column
        self._queues, self._clients = queues, clients
        totals = {queue: replace(of) for queue, of in known.totals.items()}
        self.segment = replace(known, events=dict(known.events), totals=totals, damages=[*known.damages], missing=[*known.missing],
                               hellos=[*known.hellos])  # fmt: skip
        self._packed: list[bytes] = []
        self.position: Position | None = None

    def run(self, expected: int | None = None) -> Iterator[np.ndarray]:
        """Blocks of rows, as far as there are new ones. `expected`: the number to go on from, where the segment cannot say."""
        segment = self.segment
        going_on = segment.next is not None
        start = Position(segment.index, max(segment.until, BLOCK))
        scan = Scan(self._journal, start, segment.next if going_on else expected, want_frames=False, last=segment.index)
        scan.previous = segment.previous
        for item in scan:
            if isinstance(item, Damage):
                self._damage(item)
                continue
            self.position = scan.end
            self._entry(item)
            if len(self._packed) >= BLOCK_ROWS:
                yield self._flush()
        if self._packed:
            yield self._flush()
        segment.torn_bytes = scan.torn_bytes
        if scan.end is not None and scan.end.segment == segment.index:
            segment.until, segment.next, segment.previous = scan.end.offset, scan.expected, scan.previous

    def _damage(self, damage: Damage) -> None:
        if damage.dropped or (damage.foreign and damage.position.offset == 0):
            return  # of its neighbour: whoever knows both says so
        if str(damage) not in self.segment.damages:
            self.segment.damages.append(str(damage))
        if damage.last >= damage.first:
            self.segment.missing.append((damage.first, damage.last))

    def _entry(self, entry: Entry) -> None:
        segment = self.segment
        event = lean.read_event(entry.event)
        message = event.message
        kind = message.type if message is not None and message.type else event.type
        if not kind:
            segment.unreadable += 1
            kind = "?"
        segment.events[kind] = segment.events.get(kind, 0) + 1
        if not segment.entries:
            segment.first, segment.began = entry.number, entry.now
        segment.entries += 1
        segment.ended = entry.now
        if message is None or not message.puts:
            if message is not None and message.ready:
                segment.hellos.append((event.sender, entry.position.offset))
            return
        flags = 0 if entry.frames_whole else DAMAGED
        client, where = self._clients.number(event.sender.rpartition("/")[0]), (entry.position.segment, entry.position.offset)
        for part, (first, size, header) in enumerate(lean.placed_frames(message.puts)):
            queue = self._queues.number(header.queue)
            try:
                self._packed.append(lean.row_of(header, entry.number, entry.now, where, part, first, queue, flags, client, size))
            except struct.error:  # numbers that no schema of ours ever held
                segment.unreadable += 1

    def _flush(self) -> np.ndarray:
        data = b"".join(self._packed)
        self._packed.clear()
        self._column.write(self.segment.rows, data)
        rows = np.frombuffer(data, ROW)
        self.segment.rows += len(rows)
        self._count(rows)
        return rows

    def _count(self, rows: np.ndarray) -> None:
        segment = self.segment
        segment.tickets, segment.groups = _widened(segment.tickets, rows["ticket"]), _widened(segment.groups, rows["group"])
        for queue in np.unique(rows["queue"]):
            of = rows[rows["queue"] == queue]
            new = Totals(records=len(of), bytes=int(of["bytes"].sum(dtype=np.int64)), first=float(of["at"][0]), last=float(of["at"][-1]))
            segment.totals.setdefault(self._queues.names[int(queue)], Totals()).add(new)


def _widened(known: tuple[int, int], values: np.ndarray) -> tuple[int, int]:
    there = values[values >= 0]
    if not len(there):
        return known
    low, high = int(there.min()), int(there.max())
    return (low, high) if known[1] < known[0] else (min(low, known[0]), max(high, known[1]))


def part_file(folder: Path, segment: int) -> Path:
    """Where a scanning process leaves what it knows."""
    return folder / f"{segment:08d}.part"


def read_part(folder: Path, segment: int) -> Part | None:
    """What a scanning process left, which is taken away; None where it left nothing."""
    path = part_file(folder, segment)
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=Part)
        path.unlink()
    except (OSError, msgspec.MsgspecError):
        return None
    return found


def scan_for_another(journal: Path, folder: Path, segment: int) -> None:
    """Scans a whole segment and leaves what it found in `folder`."""
    queues: list[str] = []
    clients: list[str] = []
    known = Segment(index=segment, head=head_of(segment_path(journal, segment)))
    column = Column(rows_file(folder, segment), ROW, writes=True)
    scanning = Scanning(journal, known, column, Names(queues, lean.QUEUES_MOST), Names(clients, lean.CLIENTS_MOST))
    for _ in scanning.run():
        pass
    partial = part_file(folder, segment).with_suffix(".new")
    partial.write_bytes(msgspec.msgpack.encode(Part(scanning.segment, queues, clients)))
    partial.rename(part_file(folder, segment))


def main() -> None:
    """The process. It ends with whoever started it: two at once would write the same rows."""
    die_with_parent()
    journal, folder, *segments = sys.argv[1:]
    for segment in map(int, segments):
        scan_for_another(Path(journal), Path(folder), segment)
        print(segment, flush=True)


if __name__ == "__main__":
    main()
