"""The service loop, held to its page: against a broker whose every word is said by the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from broker.client import BrokerRefusedError, Client
from schemas.codec import encode_record, make_header
from schemas.edges import Role
from schemas.errors import BlobError
from schemas.messages import Abort, Bye, Commit, Committed, Deliver, Drain, Drained, Refuse, ResendFrom, StopProcess, Welcome
from schemas.records import Version
from stages.service.loop import HungError, Loop
from stages.service.stage import Delivery
from tests.skeleton.broker_process import HOUSE
from tests.skeleton.crew import Crew, Member
from tests.skeleton.peer import Peer
from tests.skeleton.scripted_broker import ScriptedBroker, a_scripted_broker
from tests.skeleton.stages import FakeWeightSync
from tests.skeleton.waiting import until

VERSION = Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=())


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with a_scripted_broker() as made:
        yield made


def at_work(broker: ScriptedBroker, peer: Peer) -> Iterator[Member]:
    crew = Crew(broker.endpoint)
    member = crew.add(peer.role, peer=peer)
    yield member
    peer.crash = True
    until(lambda: not member.at_work, "the stage ends", member.story)


@pytest.fixture
def peer() -> Peer:
    return FakeWeightSync()


@pytest.fixture
def member(broker: ScriptedBroker, peer: Peer) -> Iterator[Member]:
    yield from at_work(broker, peer)


def ready(broker: ScriptedBroker) -> None:
    broker.welcome()
    broker.welcome()


class Enough(Exception):
    """The test has seen what it wanted."""


def test_a_process_that_waits_for_a_broker_sleeps_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def poll(client: Client, timeout_s: float) -> list[object]:
        waits.append(timeout_s)
        if len(waits) == 3:
            raise Enough
        return []

    monkeypatch.setattr(Client, "poll", poll)
    with pytest.raises(Enough):
        Loop(FakeWeightSync(), "ipc:///nowhere/broker", "weight-sync-0").run()
    assert min(waits) > 0.0, "or it would take a whole core for as long as it waits"


def deliver(broker: ScriptedBroker, lease: int) -> None:
    broker.deliver(lease, VERSION, "versions", newest_version=0)


def test_a_stage_says_hello_twice_once_for_its_config_and_once_when_it_can_work(broker: ScriptedBroker, member: Member) -> None:
    first = broker.welcome()
    assert (first.ready, first.windows, first.holds) == (False, {}, ())
    second = broker.welcome()
    assert (second.ready, second.windows) == (True, {"versions": 16})
    assert first.incarnation == second.incarnation
    assert broker.client.decode() == f"{second.name}/{second.incarnation}"


def test_what_is_delivered_is_answered_with_a_numbered_commit_under_the_welcomes_epoch(broker: ScriptedBroker, member: Member) -> None:
    broker.welcome(epoch=3)
    broker.welcome(epoch=3)
    deliver(broker, 40)
    commit = broker.next(Commit)
    assert (commit.epoch, commit.seq, commit.acks) == (3, 1, (40,))
    assert [header.queue for header in commit.puts] == ["installs"]


def test_a_lease_that_is_gone_after_a_reconnect_reaches_the_stage_as_an_abort(broker: ScriptedBroker, member: Member, peer: Peer) -> None:
    peer.slow = True
    ready(broker)
    deliver(broker, 40)
    deliver(broker, 41)
    until(lambda: len(peer.held) == 2, "both are there", member.story)
    broker.restart()
    assert broker.welcome(stale=(41,)).holds == (40, 41)
    until(lambda: peer.aborted == [41], "the stage is told", member.story)
    broker.restart()
    assert broker.welcome().holds == (40,)


def test_a_hello_that_is_asked_for_names_the_leases_still_held(broker: ScriptedBroker, member: Member, peer: Peer) -> None:
    peer.slow = True
    ready(broker)
    deliver(broker, 40)
    until(lambda: peer.held, "it is there", member.story)
    broker.say(Refuse(reason="hello_first"))
    hello = broker.welcome()
    assert (hello.ready, hello.holds) == (True, (40,))


def test_an_aborted_lease_is_held_no_more(broker: ScriptedBroker, member: Member, peer: Peer) -> None:
    peer.slow = True
    ready(broker)
    deliver(broker, 40)
    broker.say(Abort(lease=40))
    until(lambda: peer.aborted == [40], "the stage is told", member.story)
    broker.say(Refuse(reason="hello_first"))
    assert broker.welcome().holds == ()


def test_a_record_that_cannot_be_read_fails_its_lease_and_nothing_else(broker: ScriptedBroker) -> None:
    class Reading(FakeWeightSync):
        def deliver(self, delivery: Delivery) -> None:
            delivery.record(Version)
            super().deliver(delivery)

    stage = at_work(broker, Reading())
    next(stage)
    ready(broker)
    frames = encode_record(VERSION)
    broker.say(Deliver(lease=40, header=make_header(VERSION, frames, pipeline="skeleton", queue="versions")), [b"\xc1"])
    (failure,) = broker.next(Commit).fails
    assert (failure.lease, failure.boundary) == (40, "wire")
    deliver(broker, 41)
    assert broker.next(Commit).acks == (41,)
    next(stage, None)


def test_what_was_committed_is_kept_over_a_restart_of_the_broker_and_sent_again(broker: ScriptedBroker, member: Member, peer: Peer) -> None:
    ready(broker)
    for lease in (40, 41, 42):
        deliver(broker, lease)
    assert [broker.next(Commit).seq for _ in range(3)] == [1, 2, 3]
    broker.say(Committed(seq=1))
    broker.restart()
    hello = broker.welcome(next_seq=2)
    assert hello.holds == (41, 42), "a commit on its way still needs its leases"
    assert hello.next_seq == 2
    assert [(commit.seq, commit.acks) for commit in (broker.next(Commit), broker.next(Commit))] == [(2, (41,)), (3, (42,))]


def test_what_is_done_while_no_broker_is_there_is_sent_to_the_next(broker: ScriptedBroker, member: Member, peer: Peer) -> None:
    peer.slow = True
    ready(broker)
    deliver(broker, 40)
    until(lambda: peer.held, "it is there", member.story)
    broker.close()
    peer.slow = False
    until(lambda: peer.answered == 1, "it is answered", member.story)
    broker._open()
    assert broker.welcome().holds == (40,)
    assert broker.next(Commit).acks == (40,)


def test_a_gap_is_filled_from_where_the_broker_asks(broker: ScriptedBroker, member: Member) -> None:
    ready(broker)
    for lease in (40, 41):
        deliver(broker, lease)
    assert [broker.next(Commit).seq for _ in range(2)] == [1, 2]
    broker.say(ResendFrom(seq=1))
    assert [broker.next(Commit).seq for _ in range(2)] == [1, 2]


def test_an_ordinary_refusal_is_an_answer(broker: ScriptedBroker, member: Member) -> None:
    ready(broker)
    deliver(broker, 40)
    seq = broker.next(Commit).seq
    broker.say(Refuse(reason="stale_lease", seq=seq))
    broker.restart()
    assert broker.welcome(next_seq=2).next_seq == 2
    deliver(broker, 41)
    assert broker.next(Commit).seq == 2


def test_a_refusal_for_good_ends_the_stage_with_the_brokers_words(broker: ScriptedBroker, member: Member, peer: Peer) -> None:
    ready(broker)
    broker.say(Refuse(reason="schema", detail="install the same version", fatal=True))
    until(lambda: not member.at_work, "the stage ends", member.story)
    assert isinstance(member.error, BrokerRefusedError)
    assert "install the same version" in str(member.error)
    assert peer.closed


def test_heartbeats_leave_while_the_stage_waits_and_say_what_for(broker: ScriptedBroker, member: Member) -> None:
    ready(broker)

    def three_came() -> bool:
        broker.listen()
        return len(broker.heartbeats) >= 3

    until(three_came, "three heartbeats come", member.story)
    assert broker.heartbeats[-1].waiting == "on the broker"
    assert {"busy_seconds", "wait_seconds", "cpu_seconds", "answered_total"} <= broker.heartbeats[-1].stats.keys()


class Hanging(FakeWeightSync):
    """Says itself whether its threads move."""

    hangs = True
    asked = 0

    def responsive(self) -> bool:
        self.asked += 1
        return not self.hangs


def test_no_heartbeat_leaves_while_the_stage_is_not_responsive(broker: ScriptedBroker) -> None:
    peer = Hanging()
    stage = at_work(broker, peer)
    member = next(stage)
    ready(broker)
    until(lambda: peer.asked >= 3, "the loop asks three times", member.story)
    broker.listen()
    assert len(broker.heartbeats) <= 1, "none but the one that says on what it hangs"
    broker.heartbeats.clear()
    peer.hangs = False

    def one_came() -> bool:
        broker.listen()
        return bool(broker.heartbeats)

    until(one_came, "a heartbeat comes", member.story)
    next(stage, None)


def test_a_stage_that_falls_silent_says_once_on_what(broker: ScriptedBroker) -> None:
    peer = Hanging()
    peer.hangs = False
    stage = at_work(broker, peer)
    member = next(stage)
    ready(broker)

    def heard() -> bool:
        broker.listen()
        return bool(broker.heartbeats)

    until(heard, "a heartbeat comes", member.story)
    peer.hangs, peer.asked = True, 0
    until(lambda: heard() and broker.heartbeats[-1].stats == {}, "its last word comes", member.story)
    broker.heartbeats.clear()
    asked = peer.asked
    until(lambda: peer.asked >= asked + 3, "the loop asks on", member.story)
    broker.listen()
    assert broker.heartbeats == []
    next(stage, None)


def test_a_stage_that_hangs_for_good_ends_itself(broker: ScriptedBroker) -> None:
    stage = at_work(broker, Hanging())
    member = next(stage)
    broker.dead_s = 0.1
    ready(broker)
    until(lambda: not member.at_work, "the stage ends", member.story)
    assert isinstance(member.error, HungError)
    next(stage, None)


@pytest.mark.parametrize("order", [Drain(reason="run_end"), StopProcess()])
def test_a_drained_stage_says_so_says_goodbye_and_ends(broker: ScriptedBroker, member: Member, peer: Peer, order: Drain) -> None:
    ready(broker)
    deliver(broker, 40)
    broker.next(Commit)
    broker.say(Committed(seq=1))
    broker.say(order)
    assert broker.next(Drained).seq == 2
    assert broker.next(Bye).reason == "run_end"
    until(lambda: not member.at_work, "the stage ends", member.story)
    assert member.error is None
    assert peer.closed


@pytest.mark.parametrize("order", [Drain(reason="run_end"), StopProcess()])
def test_what_a_stage_did_last_is_told_before_it_goes(broker: ScriptedBroker, member: Member, order: Drain) -> None:
    broker.heartbeat_s = 60.0  # but for the first, at once, none is due before its end
    ready(broker)
    deliver(broker, 40)
    broker.next(Commit)
    broker.say(order)
    broker.next(Drained)
    assert broker.heartbeats[-1].stats["answered_total"] == 1.0


def test_a_stage_with_work_in_hand_is_given_time_to_drain(broker: ScriptedBroker) -> None:
    class Slow(FakeWeightSync):
        def drained(self) -> bool:
            return not self.held

    peer = Slow()
    peer.slow = True
    stage = at_work(broker, peer)
    member = next(stage)
    ready(broker)
    deliver(broker, 40)
    until(lambda: peer.held, "it is there", member.story)
    broker.say(Drain())
    peer.slow = False
    assert broker.next(Commit).acks == (40,)
    broker.next(Drained)
    next(stage, None)


def test_a_readable_descriptor_wakes_the_loop(broker: ScriptedBroker) -> None:
    read, write = os.pipe()

    class Woken(FakeWeightSync):
        def work(self) -> bool:
            super().work()
            if os.get_blocking(read) is False and self.wake_fd() == read:
                try:
                    os.read(read, 1)
                except BlockingIOError:
                    return False
                self.link.commit()
            return False

        def wake_fd(self) -> int:
            return read

    os.set_blocking(read, False)
    stage = at_work(broker, Woken())
    next(stage)
    ready(broker)
    os.write(write, b"x")
    assert broker.next(Commit).seq == 1
    next(stage, None)
    os.close(read)
    os.close(write)


# --- the process ---------------------------------------------------------------------------------------------------------------


def a_process(broker: ScriptedBroker) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.skeleton", Role.WEIGHT_SYNC.value, "--broker", broker.endpoint, "--name", "weight-sync-0"]
    return subprocess.Popen(command, cwd=HOUSE, stderr=subprocess.PIPE, text=True)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, log = process.communicate(timeout=60)
    return process.returncode, log


def test_a_process_that_is_sent_home_ends_with_0(broker: ScriptedBroker) -> None:
    process = a_process(broker)
    ready(broker)
    broker.say(Drain())
    code, log = end_of(process)
    assert code == 0, log


@pytest.mark.parametrize(("reason", "expected"), [("name", 2), ("fenced", 3)])
def test_a_process_that_is_refused_says_why_and_only_one_that_was_fenced_may_be_started_again(
    broker: ScriptedBroker, reason: str, expected: int
) -> None:
    process = a_process(broker)
    broker.welcome()
    broker.say(Refuse(reason=reason, detail="another process is at work", fatal=True))
    code, log = end_of(process)
    assert code == expected
    assert "another process is at work" in log


def test_a_process_whose_stage_crashes_ends_with_1_and_its_story(broker: ScriptedBroker) -> None:
    process = a_process(broker)
    ready(broker)
    frames = encode_record(VERSION)
    broker.say(Deliver(lease=40, header=make_header(VERSION, frames, pipeline="skeleton", queue="versions")), frames[:0])
    code, log = end_of(process)
    assert code == 1
    assert "crashed" in log
    assert "Traceback" in log
    assert broker.next(Bye).reason.startswith("stopped by ")


def test_a_stage_whose_files_could_not_be_brought_was_never_started_and_is_not_closed(broker: ScriptedBroker, peer: Peer) -> None:
    crew = Crew(broker.endpoint)

    def nowhere(welcome: Welcome) -> Welcome:
        raise BlobError("nobody has them")

    member = crew.add(peer.role, peer=peer)
    member.loop.prepare = nowhere  # before the broker has said a word
    broker.welcome()
    until(lambda: not member.at_work, "the stage ends", member.story)
    assert isinstance(member.error, BlobError)
    assert not peer.closed
