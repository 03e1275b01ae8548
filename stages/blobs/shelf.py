"""What one server can give out: the blobs of this machine's cache, and files of the directories that it was told to share.

A file of a shared directory is asked for by its digest and its place; it is read through once to know its digest, and again only after it
has changed. Promises to open nothing outside cache and shared directories, and only regular files: a link that leads out is not followed.
Descriptors stay open for a while, so a version that is deleted in the middle of a transfer still arrives.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from schemas.errors import BlobError
from schemas.records import BlobInfo
from stages.blobs.cache import Cache
from stages.blobs.outline import CHUNK_BYTES, Outline, carried_files, chunk_size, file_outline, is_digest

OPEN_MAX = 64
"""Files kept open; several versions of a sharded model."""
KNOWN_MAX = 4096
"""Outlines remembered, by file: 8 bytes a megabyte each."""


class Book(Struct):
    """An open blob."""

    descriptor: int
    outline: Outline


Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change: while these stay, the contents do."""


class Shelf:
    """See the module. `shared` may be added to while it serves. Called from several threads."""

    def __init__(self, cache: Cache | None = None, shared: Iterable[Path | str] = ()) -> None:
        self._cache = cache
        self._shared = {Path(os.path.realpath(path)) for path in shared}
        self._open: OrderedDict[str, Book] = OrderedDict()
        self._outlines: OrderedDict[Stamp, Outline] = OrderedDict()
        self._lock = threading.Lock()

    def share(self, directory: Path | str) -> None:
        """Gives out this directory and what is below it, from now on."""
        with self._lock:
            self._shared = {*self._shared, Path(os.path.realpath(directory))}

    def ready(self, digest: str) -> Book | None:
        """A blob that is open already: no file has to be read for it."""
        with self._lock:
            book = self._open.get(digest)
            if book is not None:
                self._open.move_to_end(digest)
            return book

    def find(self, digest: str, place: str = "") -> Book:
        """Opens a blob; may have to read the whole file at `place` first. Raises BlobError where it is not to be had."""
        if not is_digest(digest):
            raise BlobError(f"{digest[:40]!r} is no digest")
        cached = self._cache.blob(digest) if self._cache is not None else None
        descriptor = self._descriptor(cached) if cached is not None else self._shared_file(place)
        try:
            outline = self._outline(descriptor)
            if outline.digest != digest:
                raise BlobError(f"{cached or place} hashes to {outline.digest}, not to {digest}")
        except BaseException:
            os.close(descriptor)
            raise
        return self._keep(digest, Book(descriptor, outline))

    def chunk(self, book: Book, index: int) -> bytes:
        """The bytes of one chunk, read now: damage since the outline was made shows at the receiver. Raises BlobError, OSError."""
        if not 0 <= index * CHUNK_BYTES < book.outline.size:
            raise BlobError(f"there is no chunk {index} in {book.outline.size} bytes")
        with self._lock:  # the other thread may close what was not asked for longest
            if book.descriptor < 0:
                raise BlobError("it was closed meanwhile; ask again")
            return os.pread(book.descriptor, chunk_size(book.outline.size, index), index * CHUNK_BYTES)

    def files(self, place: str) -> tuple[BlobInfo, ...]:
        """The files of a shared model directory. Raises BlobError."""
        directory = self._inside(place)
        try:
            return tuple(self._info(path) for path in carried_files(directory))
        except OSError as error:
            raise BlobError(f"{place}: {error.strerror}") from None

    def _info(self, path: Path) -> BlobInfo:
        descriptor = self._descriptor(self._inside(str(path)))
        try:
            outline = self._outline(descriptor)
        finally:
            os.close(descriptor)
        return BlobInfo(path.name, outline.size, outline.digest)

    def _shared_file(self, place: str) -> int:
        if not place:
            raise BlobError("it is not in the cache here")
        return self._descriptor(self._inside(place))

    def _inside(self, place: str) -> Path:
        """The real path, which has to lie in a shared directory: what is named comes from another machine."""
        if not os.path.isabs(place) or "\0" in place:
            raise BlobError("a place is an absolute path")
        real = Path(os.path.realpath(place))
        if not any(real.is_relative_to(shared) for shared in self._shared):
            raise BlobError(f"{place} is not shared here")
        return real

    def _descriptor(self, path: Path) -> int:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise BlobError(f"{path}: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BlobError(f"{path} is no regular file")
        return descriptor

    def _outline(self, descriptor: int) -> Outline:
        found = os.fstat(descriptor)
        stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        with self._lock:
            known = self._outlines.get(stamp)
        if known is not None:
            return known
        outline = file_outline(descriptor)
        with self._lock:
            self._outlines[stamp] = outline
            while len(self._outlines) > KNOWN_MAX:
                self._outlines.popitem(last=False)
        return outline

    def _keep(self, digest: str, book: Book) -> Book:
        with self._lock:
            kept = self._open.setdefault(digest, book)
            self._open.move_to_end(digest)
            closed = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - OPEN_MAX)]
            for old in (*closed, *(() if kept is book else (book,))):
                _close(old)
        return kept

    def close(self) -> None:
        """Closes all files."""
        with self._lock:
            while self._open:
                _close(self._open.popitem()[1])


def _close(book: Book) -> None:
    os.close(book.descriptor)
    book.descriptor = -1
