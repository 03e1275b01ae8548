"""A stage's weights from elsewhere: brought by a thread, one directory at a time, while the stage goes on with its work.

    begin ─► thread: Depot.directory ─► wake_fd readable ─► taken: the directory, or why there is none

Owns the thread and the process's depot, which is made at the first need: a run on one machine has neither cache nor sockets of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from schemas.errors import BlobError, NotServedError, TidemillError
from schemas.messages import Source
from schemas.records import BlobDelta, BlobInfo
from stages.blobs.cache import Cache, default_directory
from stages.blobs.depot import Depot, Held

if TYPE_CHECKING:
    from broker.keys import ClientKeys


class Wanted(Struct, frozen=True, kw_only=True):
    """What to bring. `files` empty: as the producer's directory has them."""

    place: str
    files: tuple[BlobInfo, ...] = ()
    sources: tuple[Source, ...] = ()
    deltas: tuple[BlobDelta, ...] = ()


def own_depot(quota_bytes: int, keys: ClientKeys | None = None) -> Depot:
    """This process's depot, with the machine's cache and the keys it was started with. Raises BlobError, ConfigError."""
    from broker.keys import client_keys  # sockets are loaded where there is something to fetch
    from stages.blobs.fetcher import Fetcher

    cache = Cache(default_directory(), quota_bytes)
    return Depot(cache, Fetcher(cache, keys if keys is not None else client_keys()))


def nobody_serves(place: str) -> NotServedError:
    """What there is to say where something is neither here nor to be had."""
    return NotServedError(
        f"{place} is not there on this machine, and no host of this run serves files: run `tidemill host` on the machine that has it, or "
        f"copy it to the same place here"
    )


def bring(depot: Depot, wanted: Wanted) -> Held:
    """Here and now. Raises BlobError."""
    if not wanted.sources:
        raise nobody_serves(wanted.place)
    files = wanted.files or depot.fetcher.files(wanted.place, wanted.sources)
    return depot.directory(files, wanted.place, wanted.sources, wanted.deltas)


class Arrivals:
    """See the module. Used from the stage's thread."""

    def __init__(self, make: Callable[[], Depot]) -> None:
        self._make = make
        self._depot: Depot | None = None
        self._thread: threading.Thread | None = None
        self._result: Held | BlobError | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def busy(self) -> bool:
        """Something is on its way, or waits to be taken."""
        return self._thread is not None

    @property
    def fetched_bytes(self) -> int:
        """That came to this process so far."""
        return self._depot.fetcher.fetched_bytes if self._depot is not None else 0

    def wake_fd(self) -> int:
        """Readable once `taken` has something."""
        return self._wake

    def begin(self, wanted: Wanted) -> None:
        """Starts to bring it. One at a time."""
        assert self._thread is None, "one directory at a time"
        self._thread = threading.Thread(target=self._bring, args=(wanted,), name="arrivals", daemon=True)
        self._thread.start()

    def _bring(self, wanted: Wanted) -> None:
        try:
            if self._depot is None:
                self._depot = self._make()
            self._result = bring(self._depot, wanted)
        except (TidemillError, OSError) as error:
            self._result = error if isinstance(error, BlobError) else BlobError(f"{wanted.place}: {error}")
        finally:  # whatever it was, the stage does not wait for it for ever
            if self._result is None:
                self._result = BlobError(f"{wanted.place}: the fetch ended with an error of ours; its story is in this process's log")
            os.eventfd_write(self._wake, 1)

    def taken(self) -> Held | BlobError | None:
        """What came, once; None while it is on its way."""
        if self._thread is None or self._result is None:
            return None
        self._thread.join()
        os.eventfd_read(self._wake)
        found, self._thread, self._result = self._result, None, None
        return found

    def close(self) -> None:
        """Stops what is on its way; what has come stays in the cache."""
        if self._depot is not None:
            self._depot.fetcher.stop()
        if self._thread is not None:
            self._thread.join()
        if isinstance(self._result, Held):
            self._result.release()
        if self._depot is not None:
            self._depot.fetcher.close()
        os.close(self._wake)
