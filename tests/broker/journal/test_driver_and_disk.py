"""Driver and disk together.

What leaves the broker when, and what a broker with a full or failing disk tells its clients.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.core.actions import EndRun, Note, Send
from broker.core.events import Received, Started, Tick
from broker.core.invariants import violations
from broker.driver import Driver
from broker.journal import Journal
from broker.recovery import encode_state
from broker.reports import Reports
from broker.urgency import ACKNOWLEDGE_SECONDS, urgency
from schemas.codec import decode_broker_message, encode_message
from schemas.edges import Role
from schemas.errors import JournalError
from schemas.messages import BrokerMessage, ClientMessage, Commit, Committed, Credit, Deliver, Heartbeat, Refuse, Welcome
from schemas.records import Version
from tests.broker.edge_doubles import ScriptedTransport, a_hello, a_put, routing_id
from tests.broker.folding import entries_of, fold
from tests.broker.journal.faulty_files import FaultyFiles
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

TRAINER = "actor-train-0"
VERSION = Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=())


class Counter:
    """A driver whose disk is a double; turns are taken by hand."""

    def __init__(self, run: Path, config: dict[str, object], files: FaultyFiles, quota_bytes: int = 1 << 40) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.files = files
        self.transport = ScriptedTransport([])
        self.journal = Journal(run / "journal", 1 << 20, quota_bytes, files)
        self.reports = Reports(run)
        started = Started(config=config, run_directory=str(run))  # type: ignore[arg-type]
        self.driver = Driver(self.journal, self.transport, self.reports, started)  # type: ignore[arg-type]

    def hand_in(self, name: str, message: ClientMessage, frames: object = ()) -> None:
        self.transport.inbox = [(routing_id(name), [encode_message(message), *frames])]  # type: ignore[misc]
        self.driver.turn()

    def answers(self) -> list[BrokerMessage]:
        return [decode_broker_message(frames[0]) for _, frames in self.transport.sent]

    def turn_until(self, claim: Callable[[], object], what: str) -> None:
        def turned() -> bool:
            self.driver.turn()
            return bool(claim())

        until(turned, what, lambda: str(self.answers()))

    def close(self) -> None:
        self.driver.close()
        self.reports.close()


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Counter]:
    made = Counter(tmp_path / "run", a_run_config(tmp_path), FaultyFiles())
    yield made
    made.files.sync_may_go.set()
    made.files.room = None
    assert violations(made.driver.state) == []
    made.close()


def kinds(messages: list[BrokerMessage]) -> list[type]:
    return [type(message) for message in messages]


def test_no_acknowledgement_and_no_delivery_leaves_before_its_event_is_synced(counter: Counter) -> None:
    counter.hand_in(TRAINER, a_hello(Role.ACTOR_TRAIN, TRAINER, resume_step=0))
    counter.turn_until(lambda: Welcome in kinds(counter.answers()), "the trainer is welcomed")
    counter.hand_in("weight-sync-0", a_hello(Role.WEIGHT_SYNC, "weight-sync-0", windows={"versions": 4}))
    counter.turn_until(lambda: kinds(counter.answers()).count(Welcome) == 2, "weight-sync is welcomed")
    counter.files.sync_may_go.clear()
    before = len(counter.transport.sent)
    commit, frames = a_put(VERSION, "versions", newest_version=0, weights="0a")
    counter.hand_in(TRAINER, commit, frames)
    until(lambda: counter.files.calls[-1] == "fdatasync", "the writer syncs")
    for _ in range(3):
        counter.driver.turn()
    assert len(counter.transport.sent) == before
    counter.files.sync_may_go.set()
    counter.turn_until(lambda: len(counter.transport.sent) >= before + 2, "the answers leave")
    assert set(kinds(counter.answers()[before:])) == {Committed, Deliver}


def test_a_failed_sync_stops_the_broker_before_anything_is_acknowledged(tmp_path: Path) -> None:
    breaks = False

    def fault(call: str, count: int) -> None:
        if call == "fdatasync" and breaks:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    counter = Counter(tmp_path / "run", a_run_config(tmp_path), FaultyFiles(fault))
    counter.hand_in(TRAINER, a_hello(Role.ACTOR_TRAIN, TRAINER, resume_step=0))
    counter.turn_until(lambda: Welcome in kinds(counter.answers()), "the trainer is welcomed")
    breaks = True
    before = len(counter.transport.sent)
    commit, frames = a_put(VERSION, "versions", newest_version=0, weights="0a")
    with pytest.raises(JournalError, match=r"cannot be written \(Input/output error\)"):
        put_and_go_on(counter, commit, frames)
    assert len(counter.transport.sent) == before
    with pytest.raises(JournalError):
        counter.close()
    assert len(counter.transport.sent) == before
    counter.reports.close()


def put_and_go_on(counter: Counter, commit: Commit, frames: object) -> None:
    counter.hand_in(TRAINER, commit, frames)
    counter.turn_until(lambda: False, "the broker stops")


def test_a_full_disk_refuses_what_has_no_ticket_and_takes_it_again_by_itself(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "run", a_run_config(tmp_path), FaultyFiles())
    counter.hand_in(TRAINER, a_hello(Role.ACTOR_TRAIN, TRAINER, resume_step=0))
    counter.turn_until(lambda: Welcome in kinds(counter.answers()), "the trainer is welcomed")
    counter.files.room = 0
    large = Commit(epoch=1, seq=1, acks=tuple(range(40_000)))  # stale leases: refused, and as an event large enough to need more room
    seq = 0
    while not counter.driver.state.disk_full:
        seq += 1
        counter.hand_in(TRAINER, Commit(epoch=1, seq=seq, acks=large.acks))
        counter.driver.settle()
        counter.driver.turn()
    commit, frames = a_put(VERSION, "versions", newest_version=0, weights="0a", seq=seq + 1)
    counter.hand_in(TRAINER, commit, frames)
    counter.turn_until(lambda: refusals(counter) == [("disk_full", seq + 1)], "the put is refused in the room that is left")
    counter.files.room = None
    counter.turn_until(lambda: not counter.driver.state.disk_full, "there is room again")
    commit, frames = a_put(VERSION, "versions", newest_version=0, weights="0a", seq=seq + 2)
    counter.hand_in(TRAINER, commit, frames)
    counter.turn_until(lambda: counter.answers()[-1] == Committed(seq=seq + 2), "the put is taken")
    counter.close()
    state, _ = fold(entries_of(tmp_path / "run"))
    assert encode_state(state) == encode_state(counter.driver.state)


def refusals(counter: Counter) -> list[tuple[str, int | None]]:
    return [(each.reason, each.seq) for each in counter.answers() if isinstance(each, Refuse) and each.reason == "disk_full"]


def test_a_disk_without_any_room_holds_the_answers_until_there_is_some(counter: Counter) -> None:
    counter.hand_in(TRAINER, a_hello(Role.ACTOR_TRAIN, TRAINER, resume_step=0))
    counter.turn_until(lambda: Welcome in kinds(counter.answers()), "the trainer is welcomed")
    counter.files.room = 0
    before = len(counter.transport.sent)
    counter.hand_in(TRAINER, Commit(epoch=1, seq=1, acks=tuple(range(400_000))))
    until(lambda: counter.journal.is_short, "the disk is full")
    for _ in range(3):
        counter.driver.turn()
    assert len(counter.transport.sent) == before
    counter.files.room = None
    counter.turn_until(lambda: len(counter.transport.sent) > before, "the answer leaves")
    assert counter.answers()[before:][0].reason == "stale_lease"  # type: ignore[union-attr]


def test_a_journal_above_its_quota_is_a_full_disk(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "run", a_run_config(tmp_path), FaultyFiles(), quota_bytes=20_000)
    counter.hand_in(TRAINER, a_hello(Role.ACTOR_TRAIN, TRAINER, resume_step=0))
    for seq in range(1, 6):
        counter.hand_in(TRAINER, Commit(epoch=1, seq=seq, acks=tuple(range(3_000))))
        counter.driver.settle()
    counter.turn_until(lambda: counter.driver.state.disk_full, "the quota is told")
    counter.close()


def test_mere_acknowledgements_wait_a_little_and_heartbeats_open_no_commit() -> None:
    put, _ = a_put(VERSION, "versions", newest_version=0, weights="0a")
    said = lambda message: Received(sender="x/1", message=message)  # noqa: E731
    committed = Send("x", Committed(seq=1))
    assert urgency(said(put), [committed]) == 0.0
    assert urgency(said(Commit(epoch=1, seq=1, acks=(4,))), [committed]) == ACKNOWLEDGE_SECONDS
    assert urgency(said(Commit(epoch=1, seq=1, acks=(4,))), [committed, Send("y", Refuse(reason="late"))]) == 0.0
    assert urgency(said(Credit(epoch=1, seq=1, queue="turns", window=1)), [committed]) == ACKNOWLEDGE_SECONDS
    assert urgency(said(Heartbeat()), [Note("seen")]) is None
    assert urgency(Tick(), []) is None
    assert urgency(Tick(), [EndRun(None)]) == 0.0
