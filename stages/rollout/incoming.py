"""Versions that are not on this machine: fetched one after the other, while the engine goes on.

Owns the version's directory in the cache that is in use: the next one may come as changed bytes against it, so it stays until that is here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from schemas.errors import BlobError
from schemas.messages import Source
from schemas.records import Install
from stages.blobs.arrivals import Arrivals, Wanted
from stages.blobs.depot import Depot, Held


class Ordered(Struct, frozen=True):
    """An order to install, and where its files can be had."""

    install: Install
    sources: tuple[Source, ...] = ()


class Arrived(Struct, frozen=True):
    """What became of a fetch."""

    order: Install
    came: Held | BlobError


def is_here(order: Install) -> bool:
    """Whether the producer's directory can be read on this machine; that it holds what was ordered is checked as it is read."""
    return Path(order.location).exists()


class Incoming:
    """See the module."""

    def __init__(self, make: Callable[[], Depot]) -> None:
        self._arrivals = Arrivals(make)
        self._order: Install | None = None
        self._in_use: Held | None = None

    @property
    def busy(self) -> bool:
        return self._arrivals.busy

    @property
    def fetched_bytes(self) -> int:
        """That came to this process so far."""
        return self._arrivals.fetched_bytes

    def wake_fd(self) -> int:
        """Readable once `taken` has something."""
        return self._arrivals.wake_fd()

    def fetch(self, ordered: Ordered) -> None:
        """Starts to bring it; one at a time."""
        order = self._order = ordered.install
        self._arrivals.begin(Wanted(place=order.location, files=order.files, sources=ordered.sources, deltas=order.deltas))

    def taken(self) -> Arrived | None:
        """What came, once."""
        came = self._arrivals.taken()
        if came is None or self._order is None:
            return None
        return Arrived(self._order, came)

    def keep(self, held: Held) -> None:
        """This one is in use from now on; the one before may be deleted."""
        if self._in_use is not None:
            self._in_use.release()
        self._in_use = held

    def close(self) -> None:
        """Stops what is on its way."""
        self._arrivals.close()
        if self._in_use is not None:
            self._in_use.release()
