"""Redis as the benchmark runs it: every write on disk before its answer (`appendfsync always`), nothing else written, a Unix socket."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess

from tools.bench.processes import Crew, wait_until


class Server:
    """One redis-server in a directory of its own."""

    label = "Redis Streams, appendfsync always"
    client = "redis"
    fresh = True
    keys = ""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.folder = crew.folder("redis")
        self.endpoint = str(self.folder / "socket")
        self.process: subprocess.Popen[bytes]

    @staticmethod
    def missing() -> str | None:
        """What has to be installed first, if anything."""
        if shutil.which("redis-server") is None:
            return "no redis-server: apt-get install redis-server"
        if importlib.util.find_spec("redis") is None or importlib.util.find_spec("hiredis") is None:
            return "no Python client: pip install 'tidemill[bench]'"
        return None

    def start(self) -> None:
        """Returns once its socket is there."""
        log = self.folder / "redis.log"
        options = {
            "port": "0", "unixsocket": self.endpoint, "dir": str(self.folder), "save": "", "appendonly": "yes", "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",  # a rewrite in the middle of a run would count against Redis
        }  # fmt: skip
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.process = self._crew.start(["redis-server", *arguments], log)
        wait_until((self.folder / "socket").exists, self.process, log)

    def stop(self) -> None:
        """At once: its data is not wanted any more."""
        self._crew.end(self.process, grace_s=0.0)


class Pipelined(Server):
    """The same server under redis-py's plain pipelines: not atomic, a whole window to a pipeline."""

    label = "Redis Streams, appendfsync always, plain pipelines (not atomic)"
    client = "redis_pipelined"
