"""Power cuts: a shim that records what a journal asks of the file system, and rebuilds every state that a crash may leave.

After a crash a file holds what was last synced, and of what was written since any part, in blocks of 4 KiB; a change of
its size may have arrived or not; of the names made, moved and removed since the directory was last synced, the first
few have arrived. Of few unsynced changes all subsets are rebuilt; of many, the telling ones and some that `seed` draws.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker.journal.files import DiskFiles

BLOCK = 4096
EXHAUSTIVE = 4
"""Up to so many unsynced changes of a file, all subsets are rebuilt; beyond, the telling ones and a few at random."""


@dataclass
class Op:
    """One call, as it was made; `ack` is no call but an acknowledgement that went out here."""

    kind: str
    inode: int = -1
    name: str = ""
    new_name: str = ""
    offset: int = 0
    data: bytes = b""
    number: int = -1


class RecordingFiles(DiskFiles):
    """Does what is asked, and notes it. `directory` as it is now counts as synced."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log: list[Op] = []
        self._inodes = itertools.count()
        self._names: dict[str, int] = {}
        self._open: dict[int, int] = {}
        self.base: dict[str, tuple[int, bytes]] = {}
        for path in sorted(directory.glob("*")) if directory.exists() else []:
            if path.is_file() and path.name != "lock":
                self._names[path.name] = next(self._inodes)
                self.base[path.name] = self._names[path.name], path.read_bytes()

    def acknowledge(self, number: int) -> None:
        """Entries up to `number` were reported durable."""
        self.log.append(Op("ack", number=number))

    def open(self, path: Path, flags: int) -> int:
        file = super().open(path, flags)
        if path.name not in self._names:
            self._names[path.name] = next(self._inodes)
            self.log.append(Op("create", self._names[path.name], path.name))
        self._open[file] = self._names[path.name]
        if flags & os.O_TRUNC:
            self.log.append(Op("truncate", self._open[file], offset=0))
        return file

    def pwrite(self, file: int, data: memoryview | bytes, offset: int) -> int:
        took = super().pwrite(file, data, offset)
        self.log.append(Op("write", self._open[file], offset=offset, data=bytes(data[:took])))
        return took

    def fdatasync(self, file: int) -> None:
        self.log.append(Op("sync", self._open[file]))

    def sync_directory(self, directory: Path) -> None:
        self.log.append(Op("sync_directory"))

    def allocate(self, file: int, offset: int, size: int) -> None:
        super().allocate(file, offset, size)
        self.log.append(Op("allocate", self._open[file], offset=offset + size))

    def truncate(self, file: int, size: int) -> None:
        super().truncate(file, size)
        self.log.append(Op("truncate", self._open[file], offset=size))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._names[new.name] = self._names.pop(old.name)
        self.log.append(Op("rename", self._names[new.name], old.name, new.name))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.log.append(Op("unlink", self._names.pop(path.name), path.name))


@dataclass
class Inode:
    """Content on disk, and changes that may or may not have arrived."""

    data: bytearray = field(default_factory=bytearray)
    pending: list[Op] = field(default_factory=list)

    def after(self, changes: list[Op]) -> bytes:
        data = bytearray(self.data)
        for change in changes:
            if change.kind == "truncate":
                del data[change.offset :]
            end = change.offset + len(change.data)
            data.extend(bytes(max(0, end - len(data))) if change.kind != "truncate" else bytes(change.offset - len(data)))
            data[change.offset : change.offset + len(change.data)] = change.data
        return bytes(data)


@dataclass
class Crash:
    """A state that a crash after `op` calls may leave: file contents by name, and the highest acknowledged number."""

    op: int
    what: str
    files: dict[str, bytes]
    acknowledged: int

    def lay_out(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        for name, data in self.files.items():
            (directory / name).write_bytes(data)


def crashes(files: RecordingFiles, seed: int = 0) -> Iterator[Crash]:
    """Every state, for a crash after each call."""
    chance = random.Random(seed)
    names = {name: inode for name, (inode, _) in files.base.items()}
    inodes = {inode: Inode(bytearray(data)) for inode, data in files.base.values()}
    moving: list[Op] = []
    acknowledged = -1
    for count, op in enumerate([Op("begin"), *files.log]):
        acknowledged = max(acknowledged, op.number)
        if op.kind in ("create", "rename", "unlink"):
            inodes.setdefault(op.inode, Inode())
            moving.append(op)
        elif op.kind in ("write", "truncate", "allocate"):
            inodes[op.inode].pending += _blocks(op)
        elif op.kind == "sync":
            inode = inodes[op.inode]
            inode.data, inode.pending = bytearray(inode.after(inode.pending)), []
        elif op.kind == "sync_directory":
            names, moving = _moved(names, moving), []
        for what, contents, known in _states(names, moving, inodes, chance):
            yield Crash(
                count, f"after {op.kind} {op.name} of call {count}: {what}", {n: contents[i] for n, i in known.items()}, acknowledged
            )


def _blocks(op: Op) -> list[Op]:
    if op.kind != "write":
        return [op]
    return [Op("write", op.inode, offset=op.offset + at, data=op.data[at : at + BLOCK]) for at in range(0, len(op.data), BLOCK)]


def _moved(names: dict[str, int], moves: list[Op]) -> dict[str, int]:
    names = dict(names)
    for move in moves:
        if move.kind != "create":
            names.pop(move.name, None)
        if move.kind != "unlink":
            names[move.new_name or move.name] = move.inode
    return names


def _states(
    names: dict[str, int], moving: list[Op], inodes: dict[int, Inode], chance: random.Random
) -> Iterator[tuple[str, dict[int, bytes], dict[str, int]]]:
    dirty = [inode for inode, content in inodes.items() if content.pending]
    for moved in range(len(moving) + 1):
        known = _moved(names, moving[:moved])
        nothing = {inode: bytes(content.data) for inode, content in inodes.items()}
        yield f"nothing unsynced, {moved} names", nothing, known
        everything = {inode: content.after(content.pending) for inode, content in inodes.items()}
        if dirty:
            yield f"all, {moved} names", everything, known
        for inode in dirty:
            for subset in _subsets(inodes[inode].pending, chance):
                what = f"{len(subset)} of {len(inodes[inode].pending)} changes of file {inode}, {moved} names"
                yield what, {**everything, inode: inodes[inode].after(subset)}, known


def _subsets(pending: list[Op], chance: random.Random) -> Iterator[list[Op]]:
    """Proper subsets, in order."""
    if len(pending) <= EXHAUSTIVE:
        for size in range(len(pending)):
            yield from (list(subset) for subset in itertools.combinations(pending, size))
        return
    for at in range(len(pending)):
        yield pending[:at]
        yield pending[:at] + pending[at + 1 :]
    for _ in range(4):
        yield [change for change in pending if chance.random() < 0.5]
