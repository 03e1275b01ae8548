"""A machine's blob server as part of a run: where it listens, what it gives out, and who may fetch.

`tidemill host` runs one for its machine; `python -m stages.blobs` is the same as a process of its own. With a broker that only this machine
can reach there is nothing to serve: the files are here.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from broker.keys import ClientKeys
from schemas.config.broker import is_routable
from schemas.errors import ConfigError
from stages.blobs.cache import Cache
from stages.blobs.peers import PeerKeys
from stages.blobs.server import BlobServer
from stages.blobs.shelf import Shelf


class Serving:
    """A server at work. `endpoint` is what others connect to: for the hello's `blobs`."""

    def __init__(self, endpoint: str, shelf: Shelf, keys: PeerKeys | None) -> None:
        self._keys = keys
        self._shelf = shelf
        self._server = BlobServer(endpoint, shelf, keys)
        self.endpoint = self._server.endpoint

    def allow(self, keys: Iterable[str]) -> None:
        """From the broker's `Peers`: these may fetch."""
        if self._keys is not None:
            self._keys.allow(keys)
            self._server.look_at_the_list()

    def share(self, directory: Path | str) -> None:
        """Gives out this directory too."""
        self._shelf.share(directory)

    @property
    def sent_bytes(self) -> int:
        return self._server.sent_bytes

    def close(self) -> None:
        self._server.close()


def serve(broker: str, cache: Cache, shared: Iterable[Path | str], keys: ClientKeys | None, listen: str = "") -> Serving | None:
    """Serves what `cache` holds and what `shared` directories hold. Raises ConfigError.

    `listen`: `tcp://<address>:<port>`; empty: the address that leads to the broker, any port. None where only this machine can reach the
    broker, unless `listen` is given.
    """
    if not listen and not is_routable(broker):
        return None
    endpoint = listen or f"tcp://{address_towards(broker)}:*"
    return Serving(endpoint, Shelf(cache, shared), PeerKeys(keys.pair) if keys is not None else None)


def address_towards(endpoint: str) -> str:
    """This machine's own address on the way to `endpoint`, as it stands in an endpoint: others who reach the broker reach it there."""
    parts = urlsplit(endpoint)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])  # no packet leaves: the kernel only chooses a route
            address = probe.getsockname()[0]
    except (OSError, IndexError, ValueError) as error:
        raise ConfigError(f"blobs: no way from here to the broker at {endpoint}: {error}") from None
    return f"[{address}]" if ":" in address else str(address)
