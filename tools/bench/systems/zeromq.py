"""Bare ZeroMQ as a yardstick: a process that hands messages on in C, and neither keeps, reads nor decides anything.

What goes through it is the most that any broker on ZeroMQ could carry between two Python clients on this machine.
`python -m tools.bench.systems.zeromq FRONT BACK` is that process.
"""

from __future__ import annotations

import subprocess
import sys

import zmq

from tools.bench.processes import Crew, wait_until

BACK = "-back"
"""Behind the endpoint for producers: the one for consumers."""


class Server:
    """One proxy process on Unix sockets in a directory of its own."""

    label = "bare ZeroMQ through a proxy, nothing kept"
    client = "zeromq"
    fresh = True
    keys = ""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.folder = crew.folder("zeromq")
        self.endpoint = f"ipc://{self.folder}/socket"
        self.process: subprocess.Popen[bytes]

    @staticmethod
    def missing() -> str | None:
        """Nothing is missing."""
        return None

    def start(self) -> None:
        """Returns once both sockets are there."""
        log = self.folder / "proxy.log"
        self.process = self._crew.start(
            [sys.executable, "-P", "-m", "tools.bench.systems.zeromq", self.endpoint, self.endpoint + BACK], log
        )
        wait_until(lambda: (self.folder / f"socket{BACK}").exists(), self.process, log)

    def stop(self) -> None:
        """At once: nothing is kept."""
        self._crew.end(self.process, grace_s=0.0)


def main() -> None:
    """Hands on until its process is ended."""
    context = zmq.Context()
    sides = []
    for endpoint in sys.argv[1:3]:
        side = context.socket(zmq.DEALER)
        side.set_hwm(0)
        side.bind(endpoint)
        sides.append(side)
    zmq.proxy(*sides)


if __name__ == "__main__":
    main()
