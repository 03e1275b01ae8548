"""How long a broker needs after kill -9, against the size of its journal: the real process, from its start until it welcomes a client.

The journal is filled by the 20 KB load; the start of an empty broker (Python's own imports) is measured beside it and shown apart.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import zmq

from schemas.edges import Role
from tools.bench.compare import run_load
from tools.bench.load import Load
from tools.bench.processes import Crew
from tools.bench.systems import tidemill
from tools.bench.wire import Link

MESSAGE_BYTES = 20_480
FILL_SECONDS = 600.0


def recovery(crew: Crew, megabytes: int) -> dict[str, Any]:
    """Fills, kills, starts, waits for a welcome. Bytes are those of the journal's files."""
    empty = _welcome_seconds(crew, tidemill.Server(crew))
    server = tidemill.Server(crew)
    server.start()
    count = megabytes * (1 << 20) // MESSAGE_BYTES
    run_load(crew, server, Load(name="fill", bytes=MESSAGE_BYTES, seconds=FILL_SECONDS, messages_max=count))
    server.stop()
    size = sum(file.stat().st_size for file in _files(server.folder))
    seconds = _welcome_seconds(crew, server)
    return {"journal_bytes": size, "messages": count, "seconds_to_welcome": seconds, "seconds_of_an_empty_broker": empty,
            "recovery_seconds": max(0.0, seconds - empty)}  # fmt: skip


def _files(folder: Path) -> list[Path]:
    return [path for path in (folder / "journal").rglob("*") if path.is_file()]


def _welcome_seconds(crew: Crew, server: tidemill.Server) -> float:
    began = time.monotonic()
    server.start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = Link(context, server.endpoint, Role.OBSERVER, "witness")
    link.hello({})
    link.welcomed()
    took = time.monotonic() - began
    link.socket.close()
    context.term()
    server.stop()
    return took
