"""A machine's cache: its quota, its locks, and what is never deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import BlobError
from schemas.records import BlobInfo
from stages.blobs.cache import Cache
from stages.blobs.outline import directory_files, file_outline
from tests.stages.blobs.builders import MIB, a_depot, a_directory, model_file, same, serving, some_bytes

HOUSE = Path(__file__).resolve().parents[3]


def stored(cache: Cache, seed: int, size: int = MIB) -> BlobInfo:
    """A blob of its own, as a transfer leaves it."""
    data = some_bytes(size, seed)
    made = cache.directory / "made"
    made.write_bytes(data)
    digest = file_outline(made).digest
    with cache.lock(digest):
        descriptor = cache.begin(digest, size)
        os.pwrite(descriptor, data, 0)
        cache.finish(digest, descriptor)
        os.close(descriptor)
    made.unlink()
    return BlobInfo("model.safetensors", size, digest)


def aged(path: Path, seconds: float) -> Path:
    os.utime(path, (path.stat().st_atime - seconds, path.stat().st_mtime - seconds))
    return path


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * MIB)
    infos = [stored(cache, seed) for seed in range(3)]
    trees = [cache.make_tree([info]) for info in infos]
    for tree, age in zip(trees, (100, 300, 200), strict=True):
        aged(tree, age)
    stored(cache, 9)
    assert [tree.exists() for tree in trees] == [True, False, True]
    assert cache.used_bytes() <= 3 * MIB


def test_what_is_in_use_is_never_deleted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * MIB)
    tree = aged(cache.make_tree([stored(cache, 1)]), 1000)
    other = cache.make_tree([stored(cache, 2)])
    held = cache.use(tree)
    stored(cache, 3)
    assert (tree.exists(), other.exists()) == (True, False)
    assert held is not None


def test_a_cache_full_of_what_is_in_use_says_so(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * MIB)
    trees = [cache.make_tree([stored(cache, seed)]) for seed in (1, 2)]
    held = [cache.use(tree) for tree in trees]
    with pytest.raises(BlobError, match=r"host\.cache_bytes"):
        stored(cache, 3)
    assert all(held)
    assert [tree.exists() for tree in trees] == [True, True]
    held[0].release()  # type: ignore[union-attr]
    stored(cache, 3)
    assert not trees[0].exists()


def test_a_users_death_frees_what_it_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path, MIB)
    tree = cache.make_tree([stored(cache, 1)])
    script = f"""
import sys, time
from pathlib import Path
from stages.blobs.cache import Cache
held = Cache(Path({str(tmp_path)!r}), 1).use(Path({str(tree)!r}))
print("held", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=HOUSE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"held\n"
        with pytest.raises(BlobError):
            stored(cache, 2)
        user.send_signal(signal.SIGKILL)
        user.wait()
    stored(cache, 2)
    assert not tree.exists()


def test_a_partial_file_that_nobody_fetches_makes_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * MIB)
    os.close(cache.begin("0123456789abcdef", 2 * MIB))
    stored(cache, 1)
    assert not cache.partial("0123456789abcdef").exists()


def test_a_blob_between_its_arrival_and_its_directory_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * MIB)
    info = stored(cache, 1)
    pin = cache.pin(info.digest)
    stored(cache, 2)
    with pytest.raises(BlobError):
        stored(cache, 3, 2 * MIB)
    assert cache.blob(info.digest) is not None
    assert pin is not None


def test_two_that_wait_for_one_lock_have_it_one_after_the_other(tmp_path: Path) -> None:
    cache = Cache(tmp_path, MIB)
    with cache.lock("a"), pytest.raises(BlobError, match="gave up waiting"), cache.lock("a", lambda: True):
        raise AssertionError("two have it")
    with cache.lock("a"):
        pass


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "..", "nul\0"])
def test_a_directory_holds_plain_files_only(tmp_path: Path, name: str) -> None:
    cache = Cache(tmp_path, MIB)
    info = stored(cache, 1, 10)
    with pytest.raises(BlobError):
        cache.make_tree([BlobInfo(name, info.bytes, info.digest)])


def test_versions_that_outgrow_a_small_cache_still_come_one_after_the_other(tmp_path: Path) -> None:
    run = tmp_path / "run"
    directories = [a_directory(run / f"0-{number}", seed=number) for number in range(4)]
    with serving(run) as (_, source), a_depot(tmp_path / "cache", quota=12 * MIB) as depot:
        before = None
        for directory in directories:
            held = depot.directory(directory_files(directory), str(directory), [source])
            assert same(held.path, directory)
            if before is not None:
                assert before.path.exists(), "what is in use was deleted"
                before.release()
            before = held
        assert depot.cache.used_bytes() <= 12 * MIB
        assert depot.cache.blob(model_file(directory_files(directories[0])).digest) is None


def test_a_cache_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BlobError, match="TIDEMILL_CACHE"):
        Cache(tmp_path / "file" / "cache", MIB)
