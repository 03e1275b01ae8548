"""A broker as a process of its own, to be killed and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.skeleton.waiting import until

HOUSE = Path(__file__).resolve().parents[2]


class BrokerProcess:
    """`python -m broker` on a run directory, at a private ipc endpoint that stays the same over restarts."""

    arguments: tuple[str, ...] = ()

    def __init__(
        self, run: Path, config: dict[str, Any], endpoint: str = "", environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.environment = os.environ | environment
        self.run = run
        self.run.mkdir(parents=True, exist_ok=True)
        self.config = run / "config.json"
        self.config.write_text(json.dumps(config))
        self._private = tempfile.mkdtemp(prefix="skeleton-", dir="/tmp")
        self.endpoint = endpoint or f"ipc://{self._private}/broker"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it is bound."""
        (self.run / "endpoint").unlink(missing_ok=True)
        places = ("--run-directory", str(self.run), "--config", str(self.config), "--endpoint", self.endpoint)
        with (self.run / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "broker", *places, *self.arguments], cwd=HOUSE, env=self.environment, stderr=log, stdout=log
            )
        until(lambda: (self.run / "endpoint").exists() or self._popen.poll() is not None, "the broker binds", self.log)
        assert self._popen.poll() is None, f"the broker ended at once: {self.log()}"

    @property
    def _popen(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "start() comes first"
        return self.process

    def kill(self) -> None:
        """kill -9, and its end."""
        self._popen.kill()
        self._popen.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still, and lives."""
        self._popen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._popen.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._popen.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit code."""
        until(lambda: self._popen.poll() is not None, "the broker ends", self.log)
        return int(self._popen.returncode)

    def log(self) -> str:
        """The end of its log."""
        file = self.run / "broker.log"
        return file.read_text()[-3000:] if file.exists() else ""

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self._private, ignore_errors=True)


@contextmanager
def a_broker_process(run: Path, config: dict[str, Any], endpoint: str = "") -> Iterator[BrokerProcess]:
    """A started broker; ended at the end, whatever happens."""
    broker = BrokerProcess(run, config, endpoint)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
