"""RabbitMQ as the benchmark runs it: one node with its own port mapper, all files in a directory of its own, loopback only."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from tools.bench.processes import Crew, free_port, wait_for_port

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's own script; the wrapper on the path changes the user, and needs one."""


class Server:
    """One node; slow to start, so it is kept for all runs, each of which has a queue of its own."""

    label = "RabbitMQ quorum queue, confirms"
    client = "rabbitmq"
    fresh = False
    keys = ""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.folder = crew.folder("rabbitmq")
        self.endpoint = ""
        self.process: subprocess.Popen[bytes]
        self._mapper: subprocess.Popen[bytes]

    @staticmethod
    def missing() -> str | None:
        """What has to be installed first, if anything."""
        if not SCRIPT.exists() or shutil.which("epmd") is None:
            return "no rabbitmq-server: apt-get install rabbitmq-server"
        if importlib.util.find_spec("pika") is None:
            return "no Python client: pip install 'tidemill[bench]'"
        return None

    def start(self) -> None:
        """Returns once it listens."""
        mapper, port, distribution = free_port(), free_port(), free_port()
        # Erlang would start a port mapper as a daemon and leave it behind; ours is on the leash.
        self._mapper = self._crew.start(["epmd", "-port", str(mapper), "-address", "127.0.0.1"], self.folder / "epmd.log")
        wait_for_port(mapper, self._mapper, self.folder / "epmd.log")
        log = self.folder / "rabbitmq.log"
        self.process = self._crew.start([str(SCRIPT)], log, self._environment(mapper, port, distribution))
        wait_for_port(port, self.process, log)
        self.endpoint = str(port)

    def _environment(self, mapper: int, port: int, distribution: int) -> dict[str, str]:
        empty = self.folder / "empty"
        empty.write_text("")
        (self.folder / "plugins").write_text("[].")
        return {
            "HOME": str(self.folder), "ERL_EPMD_PORT": str(mapper), "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"), "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"), "RABBITMQ_CONF_ENV_FILE": str(empty),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"), "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            # One process instead of a shell that waits for it: it is ended by its own pid.
            "RABBITMQ_ALLOW_INPUT": "1", "RABBITMQ_SERVER_START_ARGS": "-noinput",
        }  # fmt: skip

    def stop(self) -> None:
        """At once: its data is not wanted any more."""
        self._crew.end(self.process, grace_s=0.0)
        self._crew.end(self._mapper, grace_s=0.0)
