"""A reward process that works on command: `python -m tests.broker.stubborn_reward FOLDER BYTES --broker ENDPOINT --name NAME`.

It keeps what it is given until FOLDER/NAME.go is there, then answers all of it, each with a record of BYTES; FOLDER/NAME.held
and FOLDER/NAME.answered say how far it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from stages.service.main import run
from stages.service.stage import Delivery
from tests.skeleton.broker_process import HOUSE
from tests.skeleton.stages import FakeReward


class StubbornReward(FakeReward):
    def __init__(self, folder: Path, name: str, size: int) -> None:
        super().__init__()
        self.slow = True
        self._signs, self._name, self._size = folder, name, size

    def work(self) -> bool:
        self.slow = self.slow and not (self._signs / f"{self._name}.go").exists()
        self._say("held", len(self.held))
        more = super().work()
        self._say("answered", self.answered)
        return more

    def answer(self, delivery: Delivery) -> None:
        link, self.link = self.link, _Loaded(self.link, np.zeros(self._size // 4, np.int32))  # type: ignore[assignment]
        super().answer(delivery)
        self.link = link

    def _say(self, what: str, count: int) -> None:
        sign = self._signs / f"{self._name}.{what}"
        sign.with_suffix(".partial").write_text(str(count))
        sign.with_suffix(".partial").rename(sign)


class _Loaded:
    """A link whose samples carry ballast that nobody reads."""

    def __init__(self, link: object, ballast: np.ndarray) -> None:
        self._link, self._ballast = link, ballast

    def commit(self, *, acks: object, puts: list) -> None:
        puts = [replace(put, record=replace(put.record, kept_ids=self._ballast)) for put in puts]
        self._link.commit(acks=acks, puts=puts)  # type: ignore[attr-defined]


class Process:
    """One such process, as its test sees it."""

    def __init__(self, folder: Path, endpoint: str, name: str, size: int) -> None:
        self._folder, self.name = folder, name
        command = [sys.executable, "-m", "tests.broker.stubborn_reward", str(folder), str(size), "--broker", endpoint, "--name", name]
        self._popen = subprocess.Popen(command, cwd=HOUSE, stderr=subprocess.DEVNULL)

    def count(self, what: str) -> int:
        """How many it has `held` or `answered`."""
        with suppress(FileNotFoundError, ValueError):
            return int((self._folder / f"{self.name}.{what}").read_text())
        return 0

    def go(self) -> None:
        (self._folder / f"{self.name}.go").touch()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._popen.pid, number)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()


@contextmanager
def a_stubborn_reward(folder: Path, endpoint: str, name: str = "reward-a", size: int = 0) -> Iterator[Process]:
    process = Process(folder, endpoint, name, size)
    try:
        yield process
    finally:
        process.kill()


if __name__ == "__main__":
    signs, size = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
    run(StubbornReward(signs, sys.argv[sys.argv.index("--name") + 1], size))
