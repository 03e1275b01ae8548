"""Who is at an address where no broker has answered: somebody else, or nobody. Speaks no protocol, and knows no stage."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

PROBE_S = 1.0
"""Seconds for a plain connection; the stage stands still for so long."""


def what_is_at(endpoint: str) -> str:
    """In words, of an endpoint that has given no welcome."""
    try:
        _connect(endpoint)
    except (OSError, UnicodeError):  # the latter: a name that is none
        return "nobody answers there"
    return "something listens there, but it is no broker, or one that is not yet at work"


def _connect(endpoint: str) -> None:
    if endpoint.startswith("ipc://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PROBE_S)
            probe.connect(endpoint.removeprefix("ipc://"))
        return
    place = urlsplit(endpoint)
    socket.create_connection((place.hostname or "", place.port or 0), PROBE_S).close()
