"""Any death at any moment.

Whatever the disk kept, what was acknowledged is there, and the state is what a fold gives, byte for byte.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from schemas.errors import JournalError
from tests.broker.journal.faulty_files import FaultyFiles, dead_from
from tests.broker.journal.lives import Life, checkpoints, segments, some_run
from tests.broker.powercut import Crash, RecordingFiles, crashes

SEED = 20_240


def come_back(folder: Path, crash: Crash) -> Life:
    """A broker starts on what a crash left.

    Everything that was acknowledged is there, and all that is there is true.
    """
    crash.lay_out(folder)
    life = Life(folder)
    assert life.count > crash.acknowledged, crash.what
    if life.state is not None:
        life.check()
    return life


def test_no_power_cut_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """Every state that a cut after any call of a whole life may leave: appends, new segments, checkpoints, the end."""
    print(f"seed {SEED}")
    (tmp_path / "first").mkdir()
    files = RecordingFiles(tmp_path / "first")
    life = Life(tmp_path / "first", files)
    life.play(acknowledge=files.acknowledge)
    life.close()
    files.acknowledge(len(some_run()) - 1)
    kinds = {op.kind for op in files.log}
    assert kinds >= {"create", "write", "sync", "sync_directory", "rename", "truncate", "allocate", "unlink"}, kinds
    assert len(segments(tmp_path / "first")) > 2
    assert len(checkpoints(tmp_path / "first")) == 2
    seen = 0
    for crash in distinct(crashes(files, SEED)):
        seen += 1
        back = come_back(tmp_path / "back", crash)
        if seen % 10 == 0:  # and it goes on from there as if nothing had happened
            back.play()
            back.check()
        back.close()
        shutil.rmtree(tmp_path / "back")
    assert seen > 100  # how many differ depends on which appends the writer's thread found waiting together


def distinct(states: Iterable[Crash]) -> Iterator[Crash]:
    """Each set of files once."""
    known = set()
    for crash in states:
        key = hash((tuple(sorted(crash.files.items())), crash.acknowledged))
        if key not in known:
            known.add(key)
            yield crash


def test_no_power_cut_during_a_recovery_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """A first cut leaves a torn commit and a half-made checkpoint.

    The second comes anywhere in the start that follows.
    """
    print(f"seed {SEED}")
    (tmp_path / "first").mkdir()
    files = RecordingFiles(tmp_path / "first")
    life = Life(tmp_path / "first", files)
    life.play(100, files.acknowledge)
    life.close()
    torn = [crash for crash in distinct(crashes(files, SEED)) if ".partial" in str(crash.files.keys())][::12]
    assert len(torn) > 3
    for number, first in enumerate(torn):
        folder = tmp_path / f"torn{number}"
        first.lay_out(folder)
        files = RecordingFiles(folder)
        life = Life(folder, files)
        assert life.count > first.acknowledged
        life.play(life.count + 10, files.acknowledge)
        life.checkpoint(1e6)
        life.close()
        for second in distinct(crashes(files, SEED)):
            second.acknowledged = max(first.acknowledged, second.acknowledged)
            come_back(tmp_path / "back", second).close()
            shutil.rmtree(tmp_path / "back")


def live_and_die(folder: Path, files: FaultyFiles) -> int:
    """A life that ends where `files` says; returns what it had acknowledged."""
    life: Life | None = None
    with contextlib.suppress(OSError, JournalError):
        life = Life(folder, files)
        life.play()
        life.checkpoint(1e6)
    if life is None:
        return -1
    with contextlib.suppress(OSError, JournalError):
        life.close()
    return life.acknowledged


def test_a_kill_at_every_call_of_append_rotate_checkpoint_and_recover_leaves_the_same_state(tmp_path: Path) -> None:
    """The process dies, the machine lives.

    All calls before are done, all after are not. The second life dies at a call of its own.
    """
    whole = FaultyFiles()
    live_and_die(tmp_path / "whole", whole)
    for count in range(1, len(whole.calls) + 1):
        folder = tmp_path / "killed"
        acknowledged = live_and_die(folder, FaultyFiles(dead_from(count)))
        acknowledged = max(acknowledged, live_and_die(folder, FaultyFiles(dead_from(1 + count % 20))))
        life = Life(folder)
        assert life.count > acknowledged, f"killed at call {count}"
        if life.state is not None:
            life.check()
        if count % 10 == 0:
            life.play()
            life.check()
        life.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("count", [7, 23, 60])
def test_a_kill_at_every_call_of_a_recovery_leaves_the_same_state(tmp_path: Path, count: int) -> None:
    live_and_die(tmp_path / "once", FaultyFiles(dead_from(count)))
    for second in itertools.count(1):
        folder = tmp_path / "twice"
        shutil.copytree(tmp_path / "once", folder)
        files = FaultyFiles(dead_from(second))
        acknowledged = live_and_die(folder, files)
        life = Life(folder)
        assert life.count > acknowledged, f"killed at call {count}, then {second}"
        if life.state is not None:
            life.check()
        life.close()
        shutil.rmtree(folder)
        if len(files.calls) < second:
            return
