"""The driver: what may leave when, and what a stranger can do to it (nothing)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.core.events import Received, decode_event, encode_event
from broker.core.invariants import violations
from broker.core.state import Phase
from schemas.codec import encode_message
from schemas.edges import EDGES, Role
from schemas.header import HEADER_BYTES_MAX
from schemas.messages import (
    Abort,
    Bye,
    ClientMessage,
    Commit,
    Committed,
    Credit,
    Deliver,
    Failure,
    Heartbeat,
    Numbered,
    Receipt,
    Refuse,
    ResendFrom,
    Status,
    StatusAsked,
    StopAsked,
    Voted,
    Welcome,
)
from schemas.records import Install, Sampling, Ticket, Turn, Version
from tests.broker.edge_doubles import Desk, a_hello, a_put, routing_id
from tests.broker.folding import entries_of
from tests.skeleton.config import a_run_config

TRAINER, SYNC, ROLLOUT, ENV = "actor-train-0", "weight-sync-0", "rollout-0", "env-0"
VERSION = Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=())
INSTALL = Install(lineage=0, number=0, digest="0a", location="nowhere", tensors=())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "run", a_run_config(tmp_path))
    yield made
    assert violations(made.driver.state) == []
    made.close()


def only(messages: list[object], kind: type) -> list:
    return [message for message in messages if isinstance(message, kind)]


def a_turn(**fields: int) -> tuple[Commit, list]:
    turn = Turn(context_digest=0, sampling=Sampling(), seed=1, tokens=np.array([5, 6], np.int32))
    return a_put(turn, "turns", turn=0, context_tokens=0, new_tokens=2, **fields)


def nested(depth: int) -> object:
    """A list in a list in a list ..."""
    made: object = 1
    for _ in range(depth):
        made = [made]
    return made


def running(desk: Desk) -> list[Deliver]:
    """Brings the run to where env-0 holds its first tickets; returns their deliveries."""
    desk.hello(Role.ACTOR_TRAIN, TRAINER, resume_step=0)
    commit, frames = a_put(VERSION, "versions", newest_version=0, weights="0a")
    desk.say(TRAINER, commit, frames=frames)
    (order,) = only(desk.hello(Role.WEIGHT_SYNC, SYNC, windows={"versions": 4}), Deliver)
    commit, frames = a_put(INSTALL, "installs", newest_version=0, weights="0a", acks=(order.lease,))
    desk.say(SYNC, commit, frames=frames)
    desk.hello(Role.ROLLOUT, ROLLOUT, windows={"turns": 8})
    desk.say(ROLLOUT, Receipt(epoch=1, seq=1, lineage=0, number=0, digest="0a"))
    return only(desk.hello(Role.ENV, ENV, windows={"tickets": 2}), Deliver)


def test_nothing_leaves_before_the_event_that_caused_it_is_durable(desk: Desk) -> None:
    delivered = running(desk)
    assert len(delivered) == 2
    commit, frames = a_turn(ticket=1, group=1, member=0, attempt=1)
    desk.say(ENV, commit, frames=frames)
    waiting = 0
    for what in desk.story:
        waiting = {"append": waiting + 1, "durable": 0}.get(what, waiting)
        assert what != "send" or waiting == 0, desk.story
    assert desk.story.count("send") > 8


def test_heartbeats_wait_for_the_next_tick_or_commit(desk: Desk) -> None:
    desk.hello(Role.REWARD, "reward-0")
    before = desk.story.count("durable")
    for _ in range(3):
        desk.say("reward-0", Heartbeat())
    assert desk.story.count("durable") - before <= 1  # a tick may have come due
    desk.say("reward-0", Credit(epoch=1, seq=1, queue="episodes", window=3))
    assert desk.story[-2:] == ["durable", "send"]


def test_a_gap_in_the_numbers_is_answered_once_with_where_to_resend_from(desk: Desk) -> None:
    desk.hello(Role.REWARD, "reward-0")
    credit = Credit(epoch=1, seq=3, queue="episodes", window=3)
    assert desk.say("reward-0", credit, credit) == [ResendFrom(seq=1)]
    rest = [msgspec.structs.replace(credit, seq=seq) for seq in (1, 2, 3)]
    assert desk.say("reward-0", *rest) == [Committed(seq=3)]
    assert desk.say("reward-0", credit) == [Committed(seq=3)]


def test_who_is_unknown_is_asked_for_a_hello(desk: Desk) -> None:
    assert desk.say("nobody", Heartbeat()) == [Refuse(reason="hello_first")]


def test_anyone_may_ask_for_the_status(desk: Desk) -> None:
    (status,) = desk.say("passer-by", StatusAsked())
    assert isinstance(status, Status)
    assert status.body["phase"] == "starting"


def test_whoever_was_refused_is_counted_by_reason(desk: Desk) -> None:
    for _ in range(2):
        refusals(desk, b"\xc1")
    desk.say("nobody", Heartbeat())
    (status,) = desk.say("passer-by", StatusAsked())
    assert isinstance(status, Status)
    assert status.body["refusals"] == [
        {"client": "stranger", "reason": "bad_message", "count": 2}, {"client": "nobody", "reason": "hello_first", "count": 1},
    ]  # fmt: skip


def test_a_stop_needs_no_hello(desk: Desk) -> None:
    desk.say("passer-by", StopAsked(reason="enough"))
    assert desk.driver.state.phase in (Phase.CLOSING, Phase.CLOSED)


# --- malformed ---------------------------------------------------------------------------------------------------------------


def refusals(desk: Desk, *frames: bytes) -> list[Refuse]:
    return only([message for message, _ in desk.give(routing_id("stranger"), frames)], Refuse)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x00", b"\xc1", b"\x81\xa4type\xa7unknown", msgspec.msgpack.encode({"type": "committed", "seq": 1}), b"\x91" * 100_000,
     msgspec.msgpack.encode({"type": "heartbeat", "stats": {"a": "b"}}), msgspec.msgpack.encode([1, 2])],
)  # fmt: skip
def test_what_is_no_message_of_a_client_is_refused(desk: Desk, frame: bytes) -> None:
    (refusal,) = refusals(desk, frame)
    assert refusal.reason == "bad_message"
    assert refusal.fatal


def test_a_message_above_the_limit_is_refused(desk: Desk) -> None:
    (refusal,) = refusals(desk, encode_message(Bye(reason="x" * (9 << 20))))
    assert "at most" in refusal.detail


def test_no_frames_at_all_are_refused(desk: Desk) -> None:
    assert refusals(desk)[0].reason == "bad_message"


def test_an_unreadable_routing_id_is_refused(desk: Desk) -> None:
    ((refusal, _),) = desk.give(b"\xff\xfe", [encode_message(Heartbeat())])
    assert isinstance(refusal, Refuse)


SPOILED = {
    "a frame is missing": lambda commit, frames: (commit, frames[:-1]),
    "a frame too many": lambda commit, frames: (commit, [*frames, b"x"]),
    "no frames": lambda commit, frames: (commit, []),
    "another digest": lambda commit, frames: (spoil(commit, digest=1), frames),
    "another fingerprint": lambda commit, frames: (spoil(commit, fingerprint=1), frames),
    "an unknown record": lambda commit, frames: (spoil(commit, record="dream"), frames),
    "a header too large": lambda commit, frames: (spoil(commit, weights="x" * HEADER_BYTES_MAX), frames),
    "a flipped byte": lambda commit, frames: (commit, [frames[0], b"\xff" + bytes(frames[1])[1:]]),
}


def spoil(commit: Commit, **fields: object) -> Commit:
    header = msgspec.structs.replace(commit.puts[0], **fields)
    return msgspec.structs.replace(commit, puts=(header,))


@pytest.mark.parametrize("how", SPOILED)
def test_a_commit_with_wrong_frames_is_refused_and_spends_its_number(desk: Desk, how: str) -> None:
    running(desk)
    commit, frames = SPOILED[how](*a_turn(ticket=1, group=1, member=0, attempt=1))
    (refusal,) = desk.say(ENV, commit, frames=frames)
    assert isinstance(refusal, Refuse)
    assert (refusal.reason, refusal.seq, refusal.fatal) == ("bad_frames", 1, False)
    good, frames = a_turn(ticket=1, group=1, member=0, attempt=1, seq=2)
    assert only(desk.say(ENV, good, frames=frames), Committed) == [Committed(seq=2)]


def test_a_commit_with_wrong_frames_from_a_stranger_is_asked_for_a_hello(desk: Desk) -> None:
    commit, _ = a_turn(ticket=1, group=1, member=0, attempt=1)
    assert desk.say("nobody", commit) == [Refuse(reason="hello_first")]


# --- well formed, but not to be believed ---------------------------------------------------------------------------------------


def test_credit_on_a_queue_that_the_role_does_not_consume_is_refused(desk: Desk) -> None:
    desk.hello(Role.REWARD, "reward-0")
    for seq, queue in enumerate(("nonsense", "turns"), start=1):
        (refusal,) = desk.say("reward-0", Credit(epoch=1, seq=seq, queue=queue, window=3))
        assert isinstance(refusal, Refuse)
        assert (refusal.reason, refusal.seq) == ("role", seq)


def test_a_message_that_belongs_to_another_role_is_refused(desk: Desk) -> None:
    desk.hello(Role.REWARD, "reward-0")
    (refusal,) = desk.say("reward-0", Voted(epoch=1, seq=1, step=1, ok=True))
    assert isinstance(refusal, Refuse)
    assert (refusal.reason, refusal.seq) == ("role", 1)


def test_a_record_of_no_ticket_may_not_name_one(desk: Desk) -> None:
    desk.hello(Role.ACTOR_TRAIN, TRAINER, resume_step=0)
    commit, frames = a_put(VERSION, "versions", newest_version=0, weights="0a", ticket=7)
    (refusal,) = desk.say(TRAINER, commit, frames=frames)
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "bad_commit"


def test_one_ticket_may_not_fail_twice_in_one_commit(desk: Desk) -> None:
    first, _ = running(desk)
    commit, frames = a_turn(ticket=1, group=1, member=0, attempt=1)
    desk.say(ENV, commit, frames=frames)
    action_lease = play_action(desk)
    fails = tuple(Failure(lease=lease, boundary="env", reason="r") for lease in (first.lease, action_lease))
    (refusal,) = only(desk.say(ENV, Commit(epoch=1, seq=2, fails=fails)), Refuse)
    assert (refusal.reason, refusal.seq) == ("bad_commit", 2)


def test_a_ticket_may_not_fail_and_go_on_in_one_commit(desk: Desk) -> None:
    first, _ = running(desk)
    commit, frames = a_turn(ticket=1, group=1, member=0, attempt=1)
    both = msgspec.structs.replace(commit, fails=(Failure(lease=first.lease, boundary="env", reason="r"),))
    (refusal,) = only(desk.say(ENV, both, frames=frames), Refuse)
    assert (refusal.reason, refusal.seq) == ("bad_commit", 1)


def play_action(desk: Desk) -> int:
    """rollout-0 answers its one turn; returns the lease under which env-0 has the action."""
    from tests.skeleton.policy import say

    lease = next(lease for lease in desk.driver.state.leases.values() if lease.queue == "turns")
    commit, frames = a_put(say(1, 2, 0), "actions", ticket=1, group=1, member=0, attempt=1, turn=0, new_tokens=3, acks=(lease.id,), seq=2)
    desk.say(ROLLOUT, commit, frames=frames)
    return next(lease.id for lease in desk.driver.state.leases.values() if lease.queue == "actions")


def test_leases_that_a_hello_does_not_name_are_aborted_for_whoever_got_them_late(desk: Desk) -> None:
    """The delivery may have crossed the hello: the client is told, or it would work on for nobody."""
    first, second = running(desk)
    answers = desk.say(ENV, a_hello(Role.ENV, ENV, windows={"tickets": 2}, holds=(first.lease,)))
    assert only(answers, Abort) == [Abort(lease=second.lease)]
    assert only(answers, Welcome)[0].stale == ()
    assert [(d.header.ticket, d.header.attempt) for d in only(answers, Deliver)] == [(2, 2)]


# --- anything ----------------------------------------------------------------------------------------------------------------

SMALL = st.integers(0, 4)
"""Ids and numbers as they occur in a run that has just begun, and a few that do not."""
ANY_HEADER = st.fixed_dictionaries(
    {"queue": st.sampled_from([*EDGES, "nonsense"])},
    optional=dict.fromkeys(("ticket", "group", "member", "attempt", "turn", "new_tokens", "oldest_version", "newest_version"), SMALL),
)
LEASES = st.lists(SMALL, max_size=3).map(tuple)
ANY_CLIENT = st.sampled_from([TRAINER, SYNC, ROLLOUT, ENV, "stranger"])


@st.composite
def commits(draw: st.DrawFn) -> tuple[ClientMessage, list]:
    puts, frames = [], []
    for fields in draw(st.lists(ANY_HEADER, max_size=2)):
        records = {"ticket": Ticket(task_index=1, seed=1), "turn": a_turn_record(), "version": VERSION, "install": INSTALL}
        one, parts = a_put(records[draw(st.sampled_from(sorted(records)))], **fields)
        puts += one.puts
        frames += parts
    fails = tuple(Failure(lease=lease, boundary="b", reason="r") for lease in draw(LEASES))
    return Commit(epoch=1, seq=draw(SMALL), acks=draw(LEASES), puts=tuple(puts), fails=fails), frames


def a_turn_record() -> Turn:
    return Turn(context_digest=0, sampling=Sampling(), seed=1, tokens=np.array([5, 6], np.int32))


OTHERS = st.one_of(
    st.builds(Credit, epoch=st.just(1), seq=SMALL, queue=st.sampled_from([*EDGES, "nonsense"]), window=st.integers(-1, 3)),
    st.builds(Voted, epoch=st.just(1), seq=SMALL, step=SMALL, ok=st.booleans()),
    st.builds(Receipt, epoch=st.just(1), seq=SMALL, lineage=SMALL, number=st.integers(-1, 3), digest=st.sampled_from(["", "0a"])),
    st.builds(Heartbeat, stats=st.dictionaries(st.text(max_size=3), st.floats(), max_size=2)),
    st.builds(Bye),
).map(lambda message: (message, []))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(st.tuples(ANY_CLIENT, st.one_of(commits(), OTHERS)), max_size=8))
def test_whatever_well_formed_thing_a_client_says_the_broker_goes_on_and_its_state_holds(
    said: list[tuple[str, tuple[ClientMessage, list]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("anything")
    desk = Desk(folder / "run", a_run_config(folder))
    try:
        running(desk)
        commit, turn_frames = a_turn(ticket=1, group=1, member=0, attempt=1)
        desk.say(ENV, commit, frames=turn_frames)
        for name, (message, frames) in said:
            client = desk.driver.state.clients.get(name)
            if isinstance(message, Numbered) and client is not None and message.seq:  # else as drawn: a gap or an old number
                message = msgspec.structs.replace(message, seq=client.next_seq)
            desk.say(name, message, frames=frames)
            assert violations(desk.driver.state) == []
        assert desk.say("passer-by", StatusAsked())
    finally:
        desk.close()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.binary(max_size=40), max_size=3), identity=st.binary(min_size=1, max_size=20))
@example(frames=[encode_message(Commit())], identity=b"x")
def test_random_bytes_get_a_refusal_and_change_nothing(
    frames: list[bytes], identity: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    desk = Desk(folder / "run", a_run_config(folder))
    try:
        answers = desk.give(identity, frames)
        assert [type(message) for message, _ in answers] == [Refuse]
        assert desk.driver.state.clients == {}
    finally:
        desk.close()


def test_fields_that_nobody_knows_are_ignored_and_never_reach_the_journal(desk: Desk) -> None:
    """However deep they nest: what this decoder bears, another reader of the journal, or the next start, might not."""
    order = running(desk)[0]
    commit, frames = a_turn(ticket=order.header.ticket, group=order.header.group, member=order.header.member, attempt=1, purpose="train")
    said = msgspec.msgpack.decode(encode_message(commit)) | {"unheard_of": nested(300)}
    number = desk.journal.next_number
    answers = desk.give(routing_id(ENV), [msgspec.msgpack.encode(said), *map(bytes, frames)])
    assert [message for message, _ in answers] == [Committed(seq=1)]
    entries = {entry.number: entry for entry in entries_of(desk.journal.directory.parent)}
    event = decode_event(entries[number].event)
    assert event == Received(sender=routing_id(ENV).decode(), message=commit)
    assert entries[number].event == encode_event(event)
