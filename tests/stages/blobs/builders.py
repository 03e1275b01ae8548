"""Two machines for the blob channel: a directory that one of them shares, caches, real sockets with and without keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from broker.keys import ClientKeys, KeyDirectory, read_pair
from schemas.edges import Role
from schemas.messages import Source
from schemas.records import BlobInfo
from stages.blobs.cache import Cache
from stages.blobs.depot import Depot
from stages.blobs.fetcher import Fetcher
from stages.blobs.outline import directory_files
from stages.blobs.server import BlobServer
from stages.blobs.shelf import Shelf

MIB = 1 << 20
PLENTY = 1 << 40


def some_bytes(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def a_directory(place: Path, size: int = 5 * MIB + 17, seed: int = 0) -> Path:
    """A model's folder as far as the channel cares."""
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(some_bytes(size, seed))
    (place / "config.json").write_text('{"model_type": "qwen3"}')
    return place


def some_keys(place: Path, *names: str) -> tuple[KeyDirectory, dict[str, ClientKeys]]:
    """The broker's keys, and those of its clients by name."""
    keys = KeyDirectory(place)
    for name in names:
        keys.new(name, tuple(Role))
    server = keys.server().public
    return keys, {name: ClientKeys(read_pair(keys.client_file(name)), server) for name in names}


@contextmanager
def serving(
    *shared: Path, keys: KeyDirectory | None = None, cache: Cache | None = None, shelf: Shelf | None = None
) -> Iterator[tuple[BlobServer, Source]]:
    """A server of these directories."""
    server = BlobServer("tcp://127.0.0.1:*", shelf or Shelf(cache, shared), keys)
    try:
        yield server, Source(server.endpoint, keys.server().public if keys is not None else "")
    finally:
        server.close()


@contextmanager
def a_depot(place: Path, keys: ClientKeys | None = None, quota: int = PLENTY, patience_s: float = 5.0) -> Iterator[Depot]:
    """One process's depot over the cache at `place`."""
    cache = Cache(place, quota)
    fetcher = Fetcher(cache, keys, patience_s=patience_s)
    try:
        yield Depot(cache, fetcher)
    finally:
        fetcher.stop()
        fetcher.close()


def model_file(files: tuple[BlobInfo, ...]) -> BlobInfo:
    return next(info for info in files if info.name == "model.safetensors")


def same(one: Path, other: Path) -> bool:
    """Whether two directories hold the same files."""
    return directory_files(one) == directory_files(other)
