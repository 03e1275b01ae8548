"""What a stage asks for weights that are not on its machine: directories, by the digests of their files.

    in the cache? ──yes──► in use
         └─no─► each file: cached? deltas from what is cached? else whole ─► directory of links ─► in use

Promises: a directory that it hands out is whole, hashes to what was asked for, and stays until it is released; processes of one machine
that want the same fetch it once. Where deltas fail in whatever way, the whole file is fetched.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from schemas.errors import BlobError
from schemas.messages import Source
from schemas.records import BlobDelta, BlobInfo
from stages.blobs.cache import Cache, Lock
from stages.blobs.delta import apply_delta
from stages.blobs.outline import check_names

if TYPE_CHECKING:
    from stages.blobs.fetcher import Fetcher

log = structlog.get_logger(__name__)

ATTEMPTS = 3
"""A blob may be evicted between its arrival and its link, where several processes fill a small cache; once is bad luck."""


class Held(Struct, frozen=True, kw_only=True):
    """A directory in the cache that stays until `release`; and what it cost to have it here."""

    path: Path
    lock: Lock
    bytes: int
    """That this process fetched for it; 0 where another one did, or where it was here."""
    full_bytes: int
    """Of all its files."""
    seconds: float

    def release(self) -> None:
        """It may be deleted from now on."""
        self.lock.release()

    @property
    def metrics(self) -> dict[str, float]:
        """For a receipt."""
        return {"bytes": float(self.bytes), "full_bytes": float(self.full_bytes), "fetch_seconds": self.seconds}


class Depot:
    """One process's way to the cache."""

    def __init__(self, cache: Cache, fetcher: Fetcher) -> None:
        self.cache = cache
        self.fetcher = fetcher

    def directory(self, files: Sequence[BlobInfo], place: str, sources: Sequence[Source], deltas: Sequence[BlobDelta] = ()) -> Held:
        """The directory of exactly `files`. `place`: the producer's, where it was not fetched. Raises BlobError."""
        check_names(files)
        began, before = time.monotonic(), self.fetcher.fetched_bytes
        for _ in range(ATTEMPTS):
            with contextlib.ExitStack() as pins:
                try:
                    tree = self.cache.tree(files) or self._make(files, place, sources, deltas, pins)
                except FileNotFoundError as error:
                    log.info("blob evicted before its use", error=str(error))
                    continue
                except OSError as error:
                    raise BlobError(f"{place}: {error.strerror}; the cache is {self.cache.directory}") from error
                lock = self.cache.use(tree)
            if lock is not None:
                return Held(
                    path=tree, lock=lock, bytes=self.fetcher.fetched_bytes - before, full_bytes=sum(info.bytes for info in files),
                    seconds=time.monotonic() - began,
                )  # fmt: skip
        raise BlobError(f"{place}: its files were evicted as fast as they came; raise host.cache_bytes ({self.cache.quota_bytes})")

    def _make(
        self, files: Sequence[BlobInfo], place: str, sources: Sequence[Source], deltas: Sequence[BlobDelta], pins: contextlib.ExitStack
    ) -> Path:
        for info in files:
            self._have(info, f"{place}/{info.name}", sources, deltas)
            pin = self.cache.pin(info.digest)
            if pin is not None:
                pins.callback(pin.release)
        return self.cache.make_tree(files)

    def _have(self, info: BlobInfo, place: str, sources: Sequence[Source], deltas: Sequence[BlobDelta]) -> None:
        """The file as a blob in the cache: by deltas where that is less to fetch, else whole."""
        if self.cache.blob(info.digest) is not None:
            return
        try:
            chain = chain_to(info.digest, deltas, lambda digest: self.cache.blob(digest) is not None)
            if chain and sum(delta.bytes for delta in chain) < info.bytes:
                self._follow(chain, info.bytes, sources)
                return
        except (BlobError, FileNotFoundError) as error:
            log.warning("delta_failed", file=place, reason=str(error), instead="the whole file is fetched")
        self.fetcher.blob(info.digest, info.bytes, place, sources)

    def _follow(self, chain: Sequence[BlobDelta], size: int, sources: Sequence[Source]) -> None:
        """Makes each file of the chain from the one before. Raises BlobError, OSError."""
        for delta in chain:
            with self.cache.lock(delta.result, lambda: self.fetcher.stopped):
                if self.cache.blob(delta.result) is not None:
                    continue
                change = self.fetcher.blob(delta.digest, delta.bytes, "", sources)
                base = self.cache.blob(delta.base)
                if base is None:
                    raise BlobError(f"the base {delta.base} of a delta was evicted")
                self._make_from(base, change, delta.result, size)

    def _make_from(self, base: Path, change: Path, result: str, size: int) -> None:
        descriptor = self.cache.begin(result, size)
        try:
            apply_delta(base, change, descriptor, result)
            self.cache.finish(result, descriptor)
        except BaseException:  # what a wrong delta made is nothing to go on from
            self.cache.partial(result).unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def chain_to(result: str, deltas: Sequence[BlobDelta], is_here: Callable[[str], bool]) -> list[BlobDelta]:
    """The deltas that lead from a file that is here to `result`, in the order to apply them; empty where none do."""
    by_result = {delta.result: delta for delta in deltas}
    chain: list[BlobDelta] = []
    while (delta := by_result.pop(result, None)) is not None:
        chain.append(delta)
        if is_here(delta.base):
            return chain[::-1]
        result = delta.base
    return []
