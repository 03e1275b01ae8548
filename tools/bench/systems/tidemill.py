"""Our broker as the benchmark runs it: a real process on ipc in a directory of its own, with a small pipeline's config."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from broker.keys import KeyDirectory
from schemas.config import load_config
from schemas.edges import Role
from tools.bench.processes import Crew, wait_until

KEY = "bench"
"""Name of the one key that producer and consumer come in by."""
PIPELINE = """
[pipeline]
name = "bench"
[model]
path = "model"
[schedule]
kind = "async"
groups_per_step = 2
members = 2
steps = 1000000
[evaluation]
problems = 1
at_start = false
at_end = false
[stages.env]
environment = "bench.nowhere:Environment"
max_episode_tokens = 16384
[stages.reward]
verifier = "bench.nowhere:verifier"
[broker]
heartbeat_s = 1.0
suspect_s = 20.0
dead_s = 60.0
"""


def bench_config(folder: Path, *overrides: str) -> dict[str, Any]:
    """The resolved config, `overrides` (`key=value`) applied; `folder` gets the files that a config names."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "max_position_embeddings": 65536}))
    (model / "model.safetensors").write_bytes(b"")
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE)
    return load_config(file, overrides).model_dump(mode="json")


class Server:
    """One broker process."""

    label = "Tidemill"
    client = "tidemill"
    fresh = True
    """A new process and a new directory for every run."""
    keys = ""
    variant: tuple[str, ...] = ()

    def __init__(self, crew: Crew, *overrides: str, extra: tuple[str, ...] = ()) -> None:
        self._crew, self._overrides = crew, overrides
        self.folder = crew.folder("broker")
        self.log = self.folder / "broker.log"
        self._extra = (*self.variant, *extra)
        self.endpoint = f"ipc://{self.folder}/socket"
        self.process: subprocess.Popen[bytes]

    @staticmethod
    def missing() -> str | None:
        """Nothing is missing."""
        return None

    def start(self) -> None:
        """Returns once it is bound."""
        config = self.folder / "config.json"
        if not config.exists():
            config.write_text(json.dumps(bench_config(self.folder, *self._overrides)))
        module = "tools.bench.systems.variant" if self._extra else "broker"
        bound = self.folder / "endpoint"
        bound.unlink(missing_ok=True)
        self.process = self._crew.start(
            [sys.executable, "-P", "-m", module, *self._extra, "--run-directory", str(self.folder), "--config", str(config),
             "--endpoint", self.endpoint], self.log,
        )  # fmt: skip
        wait_until(lambda: bound.exists() and bound.stat().st_size > 0, self.process, self.log)
        self.endpoint = bound.read_text()

    def stop(self) -> None:
        """At once: an orderly end would wait for a drain that has nothing to do with the measurement."""
        self._crew.end(self.process, grace_s=0.0)

    def stop_and_report(self) -> None:
        """Ends a sampled broker, which writes its samples first."""
        self.process.send_signal(signal.SIGUSR2)
        self.process.wait(timeout=20)
        self._crew.end(self.process)


class Tcp(Server):
    """The same broker on a loopback port."""

    label = "Tidemill on tcp"

    def __init__(self, crew: Crew) -> None:
        super().__init__(crew)
        self.endpoint = "tcp://127.0.0.1:*"


class Curve(Server):
    """On a loopback port that asks for keys: every frame is encrypted."""

    label = "Tidemill on tcp with CURVE"

    def __init__(self, crew: Crew) -> None:
        directory = KeyDirectory(crew.folder("keys"))
        directory.new(KEY, tuple(Role))
        super().__init__(crew, f'broker.keys="{directory.path}"')
        self.keys = str(directory.path)
        self.endpoint = "tcp://127.0.0.1:*"


class WithoutJournal(Server):
    """The same broker, nothing kept."""

    label = "Tidemill without journal"
    variant = ("--no-journal",)
