"""Lives of a broker without sockets.

Real events of a simulated run, journaled, folded, checkpointed, and taken up again after any death.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from broker.arena import Arena
from broker.core.actions import Attachment
from broker.core.state import State
from broker.journal import Entry, Journal
from broker.journal.files import Files
from broker.recovery import encode_state, fold, recover
from tools.sim.driver import Entry as Recorded
from tools.sim.scenario import Scenario
from tools.sim.world import World

SEGMENT_BYTES = 24_000
CHECKPOINT_EVERY = 45
COMMIT_EVERY = 8


@cache
def some_run() -> tuple[Recorded, ...]:
    """About 160 events of a whole run of two steps."""
    config = {"schedule": {"steps": 2, "groups_per_step": 2, "members": 2}, "evaluation": {"problems": 2}}
    world = World(Scenario(config=config), keep=True)
    world.run()
    return tuple(world.driver.entries or ())


@cache
def truth(count: int) -> tuple[bytes, dict[int, tuple[bytes, ...]]]:
    """State and arena after the first `count` events of `some_run`."""
    state: State | None = None
    arena = Arena()
    for number, recorded in enumerate(some_run()[:count]):
        state = fold(state, arena, as_entry(number, recorded))
    return encode_state(state), frames_of(arena)


def as_entry(number: int, recorded: Recorded) -> Entry:
    from broker.journal import Position

    return Entry(number, recorded.now, recorded.event, tuple(map(bytes, recorded.frames)), Position(0, 0))


def frames_of(arena: Arena) -> dict[int, tuple[bytes, ...]]:
    contents = arena.contents()
    held = [*contents.placed, *contents.inline]
    return {message: tuple(map(bytes, arena.frames_of(Attachment(message)))) for message in sorted(held)}


class Life:
    """Takes up what `folder` holds; `play` adds the events of `some_run` that are missing."""

    def __init__(self, folder: Path, files: Files | None = None, segment_bytes: int = SEGMENT_BYTES, quota_bytes: int = 1 << 40) -> None:
        self.journal = Journal(folder, segment_bytes, quota_bytes, files)
        self.arena = Arena()
        try:
            found = recover(self.journal, self.arena)
        except BaseException:
            self.journal.close()
            raise
        self.state = found.state if found is not None else None
        self.damaged = found.damaged if found is not None else ()
        self.acknowledged = -1

    @property
    def count(self) -> int:
        """Events that it knows."""
        return self.journal.next_number

    def play(self, until: int | None = None, acknowledge: object = None) -> None:
        """Events up to number `until`, all of them where None, each eighth made durable, with a checkpoint now and then."""
        for recorded in some_run()[self.count : until]:
            number = self.journal.append(recorded.event, recorded.now, recorded.frames)
            entry = Entry(number, recorded.now, recorded.event, tuple(map(bytes, recorded.frames)), self.journal.last_position)
            self.state = fold(self.state, self.arena, entry)
            if number % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
                self.checkpoint(recorded.now)
            if number % COMMIT_EVERY == COMMIT_EVERY - 1:
                self.acknowledged = self.journal.commit()
                if callable(acknowledge):
                    acknowledge(self.acknowledged)

    def checkpoint(self, now: float) -> None:
        self.journal.checkpoint(encode_state(self.state), self.arena.contents(), now)

    def check(self) -> None:
        """What it knows is the truth, byte for byte."""
        state, frames = truth(self.count)
        assert encode_state(self.state) == state
        assert frames_of(self.arena) == frames

    def close(self) -> None:
        self.journal.close()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.checkpoint"))
