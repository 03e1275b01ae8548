"""What an install order says for other machines: the version's files by digest, and how they are made from those of versions before.

Owns the deltas of the last few versions, as blobs of this machine's cache: the server that runs here gives them out. Promises that a
version without a delta (the first, another layout, changes that are as large as the whole, a full cache) goes out whole.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import structlog
from msgspec import Struct

from schemas.errors import BlobError
from schemas.records import BlobDelta, BlobInfo
from stages.blobs.cache import Cache
from stages.blobs.delta import write_delta
from stages.blobs.outline import WEIGHTS, directory_files, file_outline
from stages.weight_sync.settings import WeightSyncSettings

log = structlog.get_logger(__name__)


class Parcel(Struct, frozen=True):
    """For an `Install`."""

    files: tuple[BlobInfo, ...] = ()
    deltas: tuple[BlobDelta, ...] = ()


class Dispatch:
    """See the module. Called from one thread at a time."""

    def __init__(self, settings: WeightSyncSettings, cache: Cache | None) -> None:
        self._cache = cache
        self._wanted = settings.transfer == "delta" and cache is not None
        self._steps: deque[tuple[BlobDelta, ...]] = deque(maxlen=settings.delta_chain_max)
        self._before: tuple[Path, tuple[BlobInfo, ...]] | None = None

    def parcel(self, directory: Path) -> Parcel:
        """What another machine needs to know of a version. Raises OSError where its files cannot be read."""
        files = directory_files(directory)
        if self._wanted and self._before is not None:
            self._steps.appendleft(self._deltas(*self._before, directory, files))
        self._before = (directory, files)
        return Parcel(files, tuple(delta for step in self._steps for delta in step))

    def _deltas(self, old: Path, old_files: tuple[BlobInfo, ...], new: Path, new_files: tuple[BlobInfo, ...]) -> tuple[BlobDelta, ...]:
        bases = {info.name: info for info in old_files}
        pairs = [(bases[info.name], info) for info in new_files if info.name.endswith(WEIGHTS) and info.name in bases]
        found = [self._delta(old, new, base, result) for base, result in pairs if base.digest != result.digest]
        return tuple(delta for delta in found if delta is not None)

    def _delta(self, old: Path, new: Path, base: BlobInfo, result: BlobInfo) -> BlobDelta | None:
        assert self._cache is not None
        made = self._cache.partial(f"{result.digest}.{os.getpid()}.delta")
        try:
            size = write_delta(old / base.name, base.digest, new / result.name, result.digest, made)
            if size is None:
                return None
            digest = file_outline(made).digest
            self._cache.adopt(made, digest, size)
            return BlobDelta(base.digest, result.digest, digest, size)
        except (BlobError, OSError) as error:
            log.warning("no_delta", version=new.name, reason=str(error), instead="it goes out whole")
            return None
        finally:
            made.unlink(missing_ok=True)
