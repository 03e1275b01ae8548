"""The arena always equals a fold of the journal, and so does the state."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.arena import Arena
from broker.core.actions import Attachment, Forget, Keep
from broker.core.events import Started
from broker.driver import Driver
from broker.journal import Journal
from broker.reports import Reports
from broker.transport import Transport
from schemas.edges import STAGES
from schemas.records import Version
from tests.broker.edge_doubles import a_put
from tests.broker.folding import as_bytes, entries_of, fold
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until


def test_what_is_not_kept_is_not_there_and_what_is_forgotten_is_gone() -> None:
    arena = Arena()
    version = Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=())
    first, frames = a_put(version, "versions")
    second, _ = a_put(version, "versions")
    arena.take(Keep((7, 0)), (*first.puts, *second.puts), [*frames, *frames])
    assert arena.frames_of(Attachment(7)) == tuple(frames)
    assert arena.bytes == sum(map(len, frames))
    arena.take(Forget((7, 99)), (), ())
    assert len(arena) == arena.bytes == 0
    with pytest.raises(KeyError):
        arena.frames_of(Attachment(7))


class LiveDriver:
    """A driver with its own thread, journal and socket, whose state can be looked at once it has ended."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        config = a_run_config(folder)
        self.journal = Journal(self.run / "journal", 64 * 1024)
        self.transport = Transport("tcp://127.0.0.1:*", config["broker"]["max_frame_bytes"])
        self.reports = Reports(self.run)
        self.driver = Driver(self.journal, self.transport, self.reports, Started(config=config, run_directory=str(self.run)))
        self.thread = threading.Thread(target=self.driver.run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.driver.stop("test over")
        until(lambda: not self.thread.is_alive(), "the driver ends")
        self.driver.close()
        self.reports.close()


def test_state_and_arena_of_a_live_run_equal_the_fold_of_its_journal_byte_for_byte(tmp_path: Path) -> None:
    live = LiveDriver(tmp_path)
    try:
        with a_crew(live.transport.endpoint, STAGES) as crew:
            crew.wait_until_home()
    finally:
        live.close()
    entries = entries_of(live.run)
    assert len(list((live.run / "journal").glob("*.log"))) > 1, "segments are small here, to be read over their bounds"
    state, arena = fold(entries)
    assert as_bytes(state) == as_bytes(live.driver.state)
    held = live.driver._arena  # its only window is frames_of, which needs ids
    assert arena._frames.keys() == held._frames.keys()
    for message, frames in held._frames.items():
        assert [bytes(frame) for frame in frames] == [bytes(frame) for frame in arena._frames[message]]
    assert arena.bytes == held.bytes
