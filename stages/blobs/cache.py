"""One machine's cache of what came over the network: blobs by digest, and directories made of them.

    blobs/<digest>               finished files, never written again
    partial/<digest>             files that are still coming, of their full size; what is not there yet hashes wrongly
    trees/<digest>/<name> ...    directories of hard links to blobs: what a stage reads
    locks/<what>                 one file a blob or tree: exclusive while it is fetched, shared while it is used

Owns the quota. Promises: a blob or tree appears whole, synced and at once, or not at all; one process at a time fetches a blob, the others
wait for it; nothing that is in use is deleted, and a lock ends with its process, however that ends. Many processes share one cache; none of
them has to be there. Knows no sockets.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import structlog

from broker.journal.files import DiskFiles
from schemas.errors import BlobError
from schemas.records import BlobInfo
from stages.blobs.outline import check_names, tree_digest

log = structlog.get_logger(__name__)

DIRECTORY_VARIABLE = "TIDEMILL_CACHE"
LOOK_S = 0.05
"""Between two looks at a lock that another process holds: a fetch takes longer."""
FOLDERS = ("blobs", "partial", "trees", "locks")


def default_directory() -> Path:
    """`$TIDEMILL_CACHE`, else `~/.cache/tidemill`."""
    named = os.environ.get(DIRECTORY_VARIABLE, "")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "tidemill"


class Lock:
    """A lock on a name, held until `release`; ended by the process's death too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Cache:
    """See the module. Raises BlobError where the directory cannot be used."""

    def __init__(self, directory: Path, quota_bytes: int) -> None:
        self.directory = directory
        self.quota_bytes = quota_bytes
        try:
            for folder in FOLDERS:
                (directory / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BlobError(f"the cache {directory} cannot be made: {error.strerror}; {DIRECTORY_VARIABLE} names another place") from None

    # --- what is there ------------------------------------------------------------------------------------------------------

    def blob(self, digest: str) -> Path | None:
        """A finished file, marked as just used."""
        return _touched(self.directory / "blobs" / digest)

    def partial(self, digest: str) -> Path:
        """Where a file that is coming is written; whoever does holds `lock(digest)`."""
        return self.directory / "partial" / digest

    def tree(self, files: Sequence[BlobInfo]) -> Path | None:
        """The directory of exactly these files, marked as just used."""
        return _touched(self.directory / "trees" / tree_digest(files))

    # --- locks --------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, name: str, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Alone with a blob, among all processes. Raises BlobError once `given_up()` while another holds it."""
        while (held := self._try_lock(name, fcntl.LOCK_EX)) is None:
            if given_up():
                raise BlobError(f"gave up waiting for another process that fetches {name}")
            time.sleep(LOOK_S)
        try:
            yield
        finally:
            held.release()

    def use(self, tree: Path) -> Lock | None:
        """Keeps a tree from being deleted until released; None where it is gone already."""
        held = self._try_lock(tree.name, fcntl.LOCK_SH)
        if held is None or tree.is_dir():
            return held
        held.release()
        return None

    def pin(self, digest: str) -> Lock | None:
        """Keeps a blob from being deleted until released; None where it is gone, or being fetched."""
        held = self._try_lock(digest, fcntl.LOCK_SH)
        if held is None or (self.directory / "blobs" / digest).exists():
            return held
        held.release()
        return None

    def _try_lock(self, name: str, kind: int) -> Lock | None:
        """None while it is held otherwise. The file may be deleted by who evicts: then the lock is on nothing, and is taken again."""
        path = self.directory / "locks" / name
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                raise
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                    return Lock(descriptor)
            os.close(descriptor)

    # --- what comes in ------------------------------------------------------------------------------------------------------

    def begin(self, digest: str, size: int) -> int:
        """Opens the partial file of a blob at its full size, room made for it. Under `lock(digest)`. Raises BlobError, OSError."""
        path = self.partial(digest)
        with self.lock("room"):
            there = path.stat().st_size if path.exists() else 0
            self._make_room(max(0, size - there), spared=digest)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.ftruncate(descriptor, size)
        return descriptor

    def finish(self, digest: str, descriptor: int) -> Path:
        """The partial file is whole: synced, and from now on a blob."""
        os.fsync(descriptor)
        target = self.directory / "blobs" / digest
        self.partial(digest).rename(target)
        DiskFiles().sync_directory(target.parent)
        return target

    def adopt(self, file: Path, digest: str, size: int) -> Path:
        """A file that was made in `partial/` becomes a blob. Raises BlobError where there is no room for it."""
        with self.lock(digest):
            with self.lock("room"):
                self._make_room(0, spared=file.name)
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            target = self.directory / "blobs" / digest
            file.rename(target)
            DiskFiles().sync_directory(target.parent)
            return target

    def make_tree(self, files: Sequence[BlobInfo]) -> Path:
        """A directory of blobs that are all there. Raises BlobError for names that are none, OSError where a blob has gone."""
        check_names(files)
        target = self.directory / "trees" / tree_digest(files)
        aside = target.with_name(f".{target.name}.{os.getpid()}.{time.monotonic_ns()}")
        aside.mkdir()
        try:
            for info in files:
                os.link(self.directory / "blobs" / info.digest, aside / info.name)
            DiskFiles().sync_directory(aside)
            with contextlib.suppress(OSError):  # another process was quicker, with the same files
                aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        DiskFiles().sync_directory(target.parent)
        return target

    # --- the quota ----------------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Of finished and of coming files; a tree's links are the blobs'."""
        return sum(size for _, size, _ in self._files("blobs")) + sum(size for _, size, _ in self._files("partial"))

    def _files(self, folder: str) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path) of each; what goes away meanwhile is left out."""
        found = []
        for path in (self.directory / folder).iterdir():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        return sorted(found)

    def _make_room(self, needed: int, spared: str) -> None:
        """Deletes what was not used for longest until `needed` bytes fit. Raises BlobError where what is left is in use."""
        over = self.used_bytes() + needed - self.quota_bytes
        over -= self._drop_blobs(over, spared)
        for _, _, tree in self._files("trees"):
            if over <= 0:
                return
            if self._drop_tree(tree):
                over -= self._drop_blobs(over, spared)
        if over > 0:
            raise BlobError(
                f"the cache {self.directory} holds at most host.cache_bytes = {self.quota_bytes} bytes, and {needed} more are needed "
                f"beside what is in use; allow it more"
            )

    def _drop_tree(self, tree: Path) -> bool:
        held = self._try_lock(tree.name, fcntl.LOCK_EX)
        if held is None:
            return False
        aside = tree.with_name(f".{tree.name}.deleted.{os.getpid()}")
        try:
            if not tree.name.startswith("."):
                tree.rename(aside)  # at once: nobody sees half a tree
            shutil.rmtree(aside if not tree.name.startswith(".") else tree)
            (self.directory / "locks" / tree.name).unlink(missing_ok=True)
        finally:
            held.release()
        log.info("cached tree deleted", tree=tree.name)
        return True

    def _drop_blobs(self, wanted: int, spared: str) -> int:
        """Bytes freed: blobs that no tree holds, and partial files that nobody is fetching, oldest first."""
        freed = 0
        for _, size, path in sorted(self._files("blobs") + self._files("partial")):
            if freed >= wanted:
                break
            if path.name != spared and self._drop_blob(path):
                freed += size
        return freed

    def _drop_blob(self, path: Path) -> bool:
        held = self._try_lock(path.name, fcntl.LOCK_EX)
        if held is None:
            return False
        try:
            if path.stat().st_nlink > 1:
                return False
            path.unlink()
            (self.directory / "locks" / path.name).unlink(missing_ok=True)
            return True
        except FileNotFoundError:
            return False
        finally:
            held.release()


def _touched(path: Path) -> Path | None:
    """`path`, its time of last use set to now; None where there is nothing."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return None
    return path
