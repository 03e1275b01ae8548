"""Packs one version at a time for other machines, in a thread: digests and deltas of large files take longer than a heartbeat may be away.

Owns the thread and, from the first version that is packed, this machine's cache. A version that cannot be packed goes out with its tensors'
digests alone, as on one machine.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import structlog

from schemas.errors import BlobError
from schemas.records import Version
from stages.blobs.cache import Cache, default_directory
from stages.weight_sync.dispatch import Dispatch, Parcel
from stages.weight_sync.settings import WeightSyncSettings

log = structlog.get_logger(__name__)


class Packing:
    """Used from the stage's thread."""

    def __init__(self) -> None:
        self._dispatch: Dispatch | None = None
        self._thread: threading.Thread | None = None
        self._order: tuple[int, Version] | None = None
        self._result: Parcel | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.delta_bytes = 0
        """Of all deltas so far."""

    @property
    def busy(self) -> bool:
        """A version is being packed, or waits to be taken."""
        return self._thread is not None

    def wake_fd(self) -> int:
        """Readable once `taken` has something."""
        return self._wake

    def begin(self, lease: int, version: Version, settings: WeightSyncSettings) -> None:
        """Starts on a version; one at a time."""
        assert self._thread is None, "one version at a time"
        self._order = (lease, version)
        self._thread = threading.Thread(target=self._pack, args=(Path(version.location), settings), name="packing", daemon=True)
        self._thread.start()

    def _pack(self, directory: Path, settings: WeightSyncSettings) -> None:
        parcel = Parcel()
        try:
            if self._dispatch is None:
                self._dispatch = Dispatch(settings, _cache(settings))
            parcel = self._dispatch.parcel(directory)
        except (BlobError, OSError) as error:
            log.warning("not_packed", version=directory.name, reason=str(error))
        finally:
            self._result = parcel
            os.eventfd_write(self._wake, 1)

    def taken(self) -> tuple[int, Version, Parcel] | None:
        """Lease, version and parcel, once they are ready; None before, and where the lease is gone."""
        if self._thread is None or self._result is None:
            return None
        self._thread.join()
        os.eventfd_read(self._wake)
        order, parcel = self._order, self._result
        self._thread, self._order, self._result = None, None, None
        if order is None:
            return None
        self.delta_bytes += parcel.deltas[0].bytes if parcel.deltas else 0
        return (*order, parcel)

    def forget(self, lease: int) -> None:
        """The lease is gone: what is packed for it goes to nobody."""
        if self._order is not None and self._order[0] == lease:
            self._order = None

    def close(self) -> None:
        """Waits for the thread: it may be writing."""
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)


def _cache(settings: WeightSyncSettings) -> Cache | None:
    return Cache(default_directory(), settings.cache_bytes) if settings.transfer == "delta" else None
