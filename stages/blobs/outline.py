"""What names a file: the digests of its chunks, and one digest over those.

    chunk    1 MiB of the file, the last one shorter        xxh3-64, 8 bytes, big-endian
    outline  the chunks' digests, end to end
    digest   xxh3-64 hex over "blob:<chunk bytes>:<file bytes>;" and the outline

So each chunk can be checked as it comes, a resumed transfer knows what it has by reading it, and whoever knows the digest need
not trust the one who sends the outline. Reads files, writes none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import xxhash
from msgspec import Struct

from schemas.errors import BlobError
from schemas.records import BlobInfo

CHUNK_BYTES = 1 << 20
"""Part of what a digest means. Large enough that a request costs little beside it, small enough that a window of them is little memory."""
DIGEST_BYTES = 8
WEIGHTS = ".safetensors"
CARRIED = (WEIGHTS, ".json", ".txt", ".jinja", ".model", ".tiktoken")
"""Endings of the files of a model's folder that are carried: weights, config and tokenizer, and nothing that somebody left beside them."""


class Outline(Struct, frozen=True):
    """A file's bytes, counted and digested in chunks."""

    size: int
    chunks: bytes

    @property
    def digest(self) -> str:
        return blob_digest(self.size, self.chunks)


def blob_digest(size: int, chunks: bytes) -> str:
    """16 hex digits; see the module."""
    digest = xxhash.xxh3_64(f"blob:{CHUNK_BYTES}:{size};".encode())
    digest.update(chunks)
    return digest.hexdigest()


def chunk_digest(data: bytes | memoryview) -> bytes:
    """8 bytes."""
    return xxhash.xxh3_64_digest(data)


def chunk_count(size: int) -> int:
    """Chunks of a file of `size` bytes; an empty file has none."""
    return -(-size // CHUNK_BYTES)


def chunk_size(size: int, index: int) -> int:
    """Bytes of one chunk."""
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)


def file_outline(file: Path | str | int) -> Outline:
    """Reads a file through; an open descriptor is read from its start. Raises OSError."""
    descriptor = file if isinstance(file, int) else os.open(file, os.O_RDONLY)
    try:
        size, digests = 0, []
        for data in _chunks(descriptor):
            size += len(data)
            digests.append(chunk_digest(data))
        return Outline(size, b"".join(digests))
    finally:
        if not isinstance(file, int):
            os.close(descriptor)


def _chunks(descriptor: int) -> Iterator[memoryview]:
    buffer = bytearray(CHUNK_BYTES)
    whole, offset = memoryview(buffer), 0
    while filled := _fill(descriptor, whole, offset):
        yield whole[:filled]
        offset += filled


def _fill(descriptor: int, buffer: memoryview, offset: int) -> int:
    """As much as there is: a read may return less than asked for in the middle of a file."""
    filled = 0
    while filled < len(buffer) and (read := os.preadv(descriptor, [buffer[filled:]], offset + filled)):
        filled += read
    return filled


def carried_files(directory: Path | str, *, weights: bool = True) -> list[Path]:
    """The files of a model's folder that go along, sorted by name."""
    found = [path for path in Path(directory).iterdir() if path.suffix in CARRIED and path.is_file() and not path.name.startswith(".")]
    return sorted(path for path in found if weights or path.suffix != WEIGHTS)


def directory_files(directory: Path | str) -> tuple[BlobInfo, ...]:
    """What a replica needs of a model's folder, each file with its digest. Raises OSError."""
    files = []
    for path in carried_files(directory):
        outline = file_outline(path)
        files.append(BlobInfo(path.name, outline.size, outline.digest))
    return tuple(files)


def tree_digest(files: Iterable[BlobInfo]) -> str:
    """Names a directory by the names and digests of its files."""
    lines = "".join(f"{info.name}={info.digest}:{info.bytes}\n" for info in sorted(files, key=lambda info: info.name))
    return xxhash.xxh3_64_hexdigest(lines.encode())


def check_names(files: Sequence[BlobInfo]) -> None:
    """What comes from elsewhere may name files of its own directory only. Raises BlobError."""
    names = {info.name for info in files}
    bad = sorted(name for name in names if Path(name).name != name or name in ("", ".", "..") or "\0" in name)
    if bad or len(names) != len(files):
        raise BlobError(f"a list of files names {bad[0]!r}, which is no plain file name" if bad else "a list of files names one twice")
    wrong = [info for info in files if not is_digest(info.digest) or info.bytes < 0]
    if wrong:
        raise BlobError(f"a list of files has no digest and size for {wrong[0].name}")


def is_digest(text: str) -> bool:
    """Whether `text` can name a blob, and so a file in a cache."""
    return len(text) == 2 * DIGEST_BYTES and set(text) <= set("0123456789abcdef")
