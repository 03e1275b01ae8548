"""A broker that kills itself (-9) at one point of its work: `python -m tests.broker.crashing_broker POINT COUNT ...broker's arguments`.

Points: `received` a numbered message is read and not journaled; `written` a batch is written and not synced; `synced` it is
synced and nothing that it caused has left; `torn` only a part of it is written. COUNT: how many messages or batches go well
before.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from broker.__main__ import main
from broker.driver import Driver
from broker.journal.files import DiskFiles
from broker.journal.format import BLOCK
from schemas.codec import decode_client_message
from schemas.messages import Numbered

POINTS = ("received", "written", "synced", "torn")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal comes at once; nothing may happen in between


class Fuse:
    """Burns down with each call. A batch is told from other writes by its size and what lies behind it: `armed` once messages come."""

    def __init__(self, point: str, count: int) -> None:
        self.point, self.left, self.armed = point, count, False

    def burn(self, point: str) -> bool:
        if not self.armed or point != self.point:
            return False
        self.left -= 1
        return self.left < 0


def rig(fuse: Fuse) -> None:
    """Puts the fuse into the broker's way."""
    receive, pwrite, sync = Driver._receive, DiskFiles.pwrite, DiskFiles.fdatasync

    def receiving(self: Driver, identity: bytes, frames: list[Any]) -> None:
        fuse.armed = fuse.armed or isinstance(decode_client_message(frames[0]), Numbered)
        if isinstance(decode_client_message(frames[0]), Numbered) and fuse.burn("received"):
            die()
        receive(self, identity, frames)

    def writing(self: DiskFiles, file: int, data: memoryview | bytes, offset: int) -> int:
        if len(data) > BLOCK and fuse.burn("torn"):
            pwrite(self, file, memoryview(data)[: len(data) // BLOCK // 2 * BLOCK or BLOCK], offset)
            die()
        return pwrite(self, file, data, offset)

    def syncing(self: DiskFiles, file: int) -> None:
        if fuse.burn("written"):
            die()
        sync(self, file)
        if fuse.burn("synced"):
            die()

    Driver._receive, DiskFiles.pwrite, DiskFiles.fdatasync = receiving, writing, syncing  # type: ignore[method-assign]


if __name__ == "__main__":
    rig(Fuse(sys.argv[1], int(sys.argv[2])))
    del sys.argv[1:3]
    sys.exit(main())
