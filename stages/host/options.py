"""What a host agent is told on its command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.edges import Role


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Empty values leave the choice to the run's configuration, or to what is found on the machine."""

    name: str = "host"
    broker: str = ""
    """The broker's endpoint: on the address that leads there this host serves blobs; empty: it serves none."""
    slots: str = ""
    """`cpu:0-1`, `gpu:0-7`, "auto"."""
    directory: Path | None = None
    roles: tuple[Role, ...] = ()
    blobs: str = ""
    """Where it serves blobs, `tcp://<address>:<port>`; empty: on the address that leads to the broker, at any port."""
