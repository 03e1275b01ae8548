"""The engine of these tests, from `engine.sh`: started once a session, and gone without a trace afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("engine.sh")
DIRECTORY = os.environ.get("TIDEMILL_DOCKER", "/var/tmp/tidemill-docker")
"""Where the script keeps everything."""
CANNOT = 75
"""The script's exit code where this machine cannot run an engine."""
LIMITS_S = {"start": 300, "base": 700, "wheels": 120, "stop": 120}
"""Far above what each takes on a loaded machine."""
SUBNETS = "10.209."
"""Of the script's bridges."""


class CannotRunError(Exception):
    """Why this machine cannot run an engine."""


@dataclass(frozen=True)
class Engine:
    """One that runs."""

    socket: str
    config: str

    def environment(self) -> dict[str, str]:
        """For commands that speak to it."""
        return {**os.environ, "DOCKER_HOST": self.socket, "DOCKER_CONFIG": self.config, "PATH": f"/usr/bin:{os.environ['PATH']}"}


@contextmanager
def an_engine() -> Iterator[Engine]:
    """One that was up before stays up. Raises CannotRunError; AssertionError where something of the engine is left at the end."""
    before = traces()
    ours = _script("start") == "started"
    try:
        _script("base")
        yield Engine(socket=f"unix://{DIRECTORY}/docker.sock", config=f"{DIRECTORY}/config")
    finally:
        if ours:
            _script("stop")
    left = traces() - before if ours else set()
    assert not left, f"the engine has left behind: {sorted(left)}"


def wheels() -> str:
    """The image that holds the wheels which pip is configured with, or `scratch`."""
    return _script("wheels")


def traces() -> set[str]:
    """What of an engine's is to be seen on this machine: bridges, rules, mounts, processes, and whether packets are forwarded."""
    rules = [f"{table}: {line}" for table in ("filter", "nat") for line in _lines("iptables", "-t", table, "-S")]
    found = {rule for rule in rules if "DOCKER" in rule or "docker0" in rule or SUBNETS in rule or "-P FORWARD DROP" in rule}
    found |= {line for line in _lines("ip", "-o", "-4", "addr") if SUBNETS in line or "docker0" in line}
    found |= {line for line in Path("/proc/mounts").read_text().splitlines() if f"{DIRECTORY}/" in line}
    found |= {f"forwards: {flag}" for flag in Path("/proc/sys/net/ipv4/ip_forward").read_text().split() if flag == "1"}
    return found | {line for line in _lines("ps", "-eo", "pid,args") if "dockerd --data-root" in line or "containerd-shim" in line}


def _lines(*command: str) -> list[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:  # not installed yet
        return []


def _script(what: str) -> str:
    try:
        ended = subprocess.run(["bash", str(SCRIPT), what], capture_output=True, text=True, check=False, timeout=LIMITS_S[what])
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"engine.sh {what} takes more than {LIMITS_S[what]} s here") from None
    if ended.returncode == CANNOT:
        raise CannotRunError(ended.stderr.strip().splitlines()[-1])
    assert ended.returncode == 0, f"engine.sh {what} ended with {ended.returncode}: {ended.stderr[-2000:]}"
    print(ended.stderr, end="")
    return ended.stdout.strip()
