"""Commits: all or nothing, in the order of their producer, and only what the loop allows."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from broker.core.events import DiskFull, DiskOk, Malformed
from schemas import messages as wire
from schemas.edges import Role
from tests.broker.core.mill import ALL, Mill, a_header, whose

MakeMill = Callable[..., Mill]


def refusal(mill: Mill, name: str) -> tuple[str, int | None]:
    """Why the newest message of a client was refused, and its number."""
    message = mill.last(name, wire.Refuse)
    return message.reason, message.seq


def test_one_stale_lease_refuses_the_whole_commit_and_spends_its_number(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    episodes = [mill.play(ticket) for ticket in mill.held("env-1", "tickets")[:2]]
    puts = [a_header("scored", **whose(episode.header), reward=1.0) for episode in episodes]
    mill.commit("reward-1", acks=[episodes[0].lease, 999], puts=puts)
    assert refusal(mill, "reward-1") == ("stale_lease", mill.seqs["reward-1"])
    assert len(mill.held("reward-1", "episodes")) == 2
    assert mill.state.clients["reward-1"].next_seq == mill.seqs["reward-1"] + 1
    mill.commit("reward-1", acks=[episode.lease for episode in episodes], puts=puts)
    assert mill.last("reward-1", wire.Committed).seq == mill.seqs["reward-1"]
    assert mill.held("reward-1", "episodes") == []


def test_a_lease_of_another_client_is_stale(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, "env-2")
    ticket = mill.held("env-1", "tickets")[0]
    mill.commit("env-2", acks=[ticket.lease])
    assert refusal(mill, "env-2")[0] == "stale_lease"


def test_a_number_out_of_order_is_answered_with_where_to_resend_from_and_changes_nothing(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "trainer", "sync")
    ticket = mill.held("env-1", "tickets")[0]
    put = a_header("turns", **whose(ticket.header), turn=0, new_tokens=5)
    mill.say("env-1", wire.Commit(epoch=1, seq=3, puts=(put,)))
    mill.say("env-1", wire.Commit(epoch=1, seq=4))
    assert mill.all("env-1", wire.ResendFrom) == [wire.ResendFrom(seq=1)]
    assert mill.turns_held() == []
    mill.say("env-1", wire.Commit(epoch=1, seq=1, puts=(put,)))
    assert mill.last("env-1", wire.Committed).seq == 1
    assert len(mill.turns_held()) == 1


def test_a_number_that_came_before_is_answered_and_not_taken_twice(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "trainer", "sync")
    ticket = mill.held("env-1", "tickets")[0]
    commit = wire.Commit(epoch=1, seq=1, puts=(a_header("turns", **whose(ticket.header), turn=0, new_tokens=5),))
    mill.say("env-1", commit)
    mill.say("env-1", commit)
    assert [message.seq for message in mill.all("env-1", wire.Committed)] == [1, 1]
    assert mill.all("env-1", wire.Refuse) == []
    assert len(mill.state.sessions) == 1


def test_a_hole_that_stays_is_asked_for_again_by_the_next_heartbeat(a_mill: MakeMill) -> None:
    mill = a_mill("env-1")
    mill.say("env-1", wire.Commit(epoch=1, seq=2))
    mill.say("env-1", wire.Heartbeat())
    assert len(mill.all("env-1", wire.ResendFrom)) == 1
    mill.wait(1, "env-1")
    mill.say("env-1", wire.Heartbeat())
    assert mill.all("env-1", wire.ResendFrom) == [wire.ResendFrom(seq=1)] * 2


def test_frames_that_do_not_fit_their_headers_spend_the_number(a_mill: MakeMill) -> None:
    mill = a_mill("env-1")
    mill.feed(Malformed(sender=mill.identity("env-1"), epoch=1, seq=1, detail="too short"))
    assert refusal(mill, "env-1") == ("bad_frames", 1)
    assert mill.state.clients["env-1"].next_seq == 2


def test_numbers_of_an_older_epoch_are_fenced(a_mill: MakeMill) -> None:
    mill = a_mill("env-1")
    mill.hello("env-1", incarnation="b")
    mill.say("env-1", wire.Commit(epoch=1, seq=1))
    message = mill.replies[-1]
    assert isinstance(message, wire.Refuse)
    assert (message.reason, message.fatal) == ("fenced", True)


def puts_that_are_refused() -> list[tuple[str, str, dict[str, Any], str]]:
    """Who, on which queue, with what wrong, and the reason given."""
    return [
        ("reward-1", "turns", {}, "role"),
        ("env-1", "tickets", {}, "role"),
        ("env-1", "nonsense", {}, "role"),
        ("env-1", "turns", {"record": "action"}, "role"),
        ("env-1", "turns", {"pipeline": "another"}, "pipeline"),
        ("env-1", "turns", {"ticket": 999}, "no_ticket"),
        ("env-1", "turns", {"member": 7}, "no_ticket"),
        ("env-1", "turns", {"attempt": 2}, "late"),
        ("env-2", "turns", {}, "late"),
        ("env-1", "episodes", {}, "bad_commit"),
        ("rollout-1", "actions", {}, "bad_commit"),
    ]


@pytest.mark.parametrize(("who", "queue", "wrong", "reason"), puts_that_are_refused())
def test_what_does_not_belong_in_the_loop_is_refused(a_mill: MakeMill, who: str, queue: str, wrong: dict[str, Any], reason: str) -> None:
    mill = a_mill(*ALL, "env-2", stages__env__sessions=1)
    ticket = mill.held("env-1", "tickets")[0]
    good = a_header("turns" if queue == "nonsense" else queue, **whose(ticket.header), turn=0)
    before = dict(mill.state.queues["turns"].ready)
    mill.commit(who, puts=[replace(good, **{"queue": queue, **wrong})])
    assert refusal(mill, who)[0] == reason
    assert mill.state.sessions == {}
    assert mill.state.queues["turns"].ready == before


def test_a_session_has_at_most_one_message_in_the_ring(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "trainer", "sync")
    ticket = mill.held("env-1", "tickets")[0]
    first = a_header("turns", **whose(ticket.header), turn=0, new_tokens=5)
    mill.commit("env-1", puts=[first, replace(first, turn=1)])
    assert refusal(mill, "env-1")[0] == "bad_commit"
    mill.commit("env-1", puts=[first])
    mill.commit("env-1", puts=[replace(first, turn=1)])
    assert refusal(mill, "env-1")[0] == "bad_commit"
    assert len(mill.turns_held()) == 1


def test_a_lease_of_a_ticket_is_not_acknowledged_without_its_answer(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    ticket = mill.held("env-1", "tickets")[0]
    mill.commit("env-1", acks=[ticket.lease])
    assert refusal(mill, "env-1")[0] == "bad_commit"
    assert mill.held("env-1", "tickets")[0] == ticket


def test_a_ticket_cannot_fail_and_go_on_in_one_commit(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    ticket = mill.held("env-1", "tickets")[0]
    failure = wire.Failure(lease=ticket.lease, boundary="env", reason="broken")
    mill.commit("env-1", puts=[a_header("turns", **whose(ticket.header), turn=0)], fails=[failure])
    assert refusal(mill, "env-1")[0] == "bad_commit"
    mill.commit("env-1", fails=[failure, failure])
    assert refusal(mill, "env-1")[0] == "bad_commit"
    assert mill.state.tickets[ticket.header.ticket].failures == 0


def test_a_full_disk_refuses_only_what_has_no_ticket(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.feed(DiskFull())
    mill.commit("trainer", puts=[a_header("versions", newest_version=1, weights="w1")])
    assert refusal(mill, "trainer")[0] == "disk_full"
    mill.play(mill.held("env-1", "tickets")[0])
    mill.feed(DiskOk())
    mill.publish(1)
    assert mill.last("rollout-1", wire.InstallOrder).header.newest_version == 1


@pytest.mark.parametrize(
    ("who", "message"),
    [
        ("env-1", wire.Voted(step=1, ok=True)),
        ("reward-1", wire.CheckpointSaved(step=1)),
        ("env-1", wire.Receipt(lineage=0, number=0, digest="w0")),
        ("trainer", wire.ProcessExited(name="env-1", code=1)),
        ("env-1", wire.Credit(queue="turns", window=4)),
        ("env-1", wire.Credit(queue="nonsense", window=4)),
        ("env-1", wire.GrantAsked()),
    ],
)
def test_a_message_of_another_role_is_refused_and_spends_its_number(a_mill: MakeMill, who: str, message: wire.Numbered) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    mill.send(who, message)
    assert refusal(mill, who) == ("role", mill.seqs[who])
    assert mill.state.trainer.step == 0
    assert mill.state.clients["env-1"].role == Role.ENV


def test_a_refusal_by_a_full_disk_that_a_hello_crossed_is_told_again_ahead_of_the_welcome(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.feed(DiskFull())
    mill.commit("trainer", puts=[a_header("versions", newest_version=1, weights="w1")])
    seq, before = mill.seqs["trainer"], len(mill.inbox["trainer"])
    mill.hello("trainer", next_seq=seq, resume_step=0)
    refused, welcome = mill.inbox["trainer"][before : before + 2]
    assert isinstance(refused, wire.Refuse)
    assert (refused.reason, refused.seq) == ("disk_full", seq)
    assert isinstance(welcome, wire.Welcome)
    mill.hello("trainer", next_seq=seq + 1, resume_step=0)
    assert len(mill.all("trainer", wire.Refuse)) == 2
