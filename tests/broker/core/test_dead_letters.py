"""Dead letters: what was given up is kept with its history, within bounds, and can be tried again where that makes sense."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.core import dead
from broker.core.actions import Detach, Forget
from schemas import messages as wire
from schemas.header import FrameInfo, Header
from tests.broker.core.mill import ALL, Mill, a_header, whose

Mills = Callable[..., Mill]


def fail(mill: Mill, by: str, lease: int, reason: str = "no such key") -> None:
    mill.commit(by, fails=[wire.Failure(lease=lease, boundary="verifier", reason=reason)])


def retried(mill: Mill, letter: int) -> wire.DeadRetried:
    mill.say("observer", wire.DeadRetry(id=letter), sender="observer/a")
    answer = mill.replies[-1]
    assert isinstance(answer, wire.DeadRetried)
    return answer


def test_a_record_that_cannot_be_processed_is_kept_with_every_attempt(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__member_retries=1)
    episode = mill.play(mill.held("env-1", "tickets")[0])
    fail(mill, "reward-1", episode.lease, "first")
    again = next(held for held in mill.held("reward-1", "episodes") if held.header.ticket == episode.header.ticket)
    fail(mill, "reward-1", again.lease, "second")
    (letter,) = mill.state.dead.values()
    assert (letter.queue, letter.header.ticket, letter.cause) == ("episodes", episode.header.ticket, "verifier: second")
    assert [(each.client, each.queue, each.cause) for each in letter.history] == [
        ("reward-1", "episodes", "verifier: first"),
        ("reward-1", "episodes", "verifier: second"),
    ]
    assert mill.state.ledger.failed == {"verifier": 1}


def test_its_frames_stay_in_the_arena_and_hold_no_segment_of_the_journal(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__member_retries=0)
    episode = mill.play(mill.held("env-1", "tickets")[0])
    fail(mill, "reward-1", episode.lease)
    (letter,) = mill.state.dead.values()
    forgotten = [message for action in mill.actions if isinstance(action, Forget) for message in action.messages]
    assert letter.message not in forgotten
    assert Detach((letter.message,)) in mill.actions
    assert letter.message not in mill.state.messages


def test_a_ticket_that_kills_its_envs_is_a_letter_with_each_death(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__max_deliveries=2)
    mill.hello("env-1", incarnation="b")
    mill.hello("env-1", incarnation="c")
    letters = list(mill.state.dead.values())
    assert letters
    assert {letter.queue for letter in letters} == {"tickets"}
    assert [each.cause for each in letters[0].history] == ["replaced", "replaced"]
    assert [each.attempt for each in letters[0].history] == [1, 2]


def test_a_member_of_an_open_group_is_played_again_by_another_ticket(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__member_retries=0)
    one, two = (ticket for ticket in mill.held("env-1", "tickets") if ticket.header.group == 1)
    fail(mill, "reward-1", mill.play(one).lease)
    answer = retried(mill, 1)
    assert answer.done
    fresh = next(
        ticket for ticket in mill.held("env-1", "tickets") if ticket.header.group == 1 and ticket.header.ticket != two.header.ticket
    )
    assert fresh.header.member == one.header.member
    assert str(fresh.header.ticket) in answer.detail
    mill.score(mill.play(fresh), 1.0)
    mill.score(mill.play(two), 0.0)
    assert mill.state.groups[1].judged


def test_a_letter_is_tried_again_once(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__member_retries=0)
    fail(mill, "reward-1", mill.play(mill.held("env-1", "tickets")[0]).lease)
    assert retried(mill, 1).done
    assert not retried(mill, 1).done
    assert "before" in retried(mill, 1).detail


def test_the_task_of_a_group_that_is_through_is_played_by_the_next_group(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__member_retries=0, schedule__min_members=1)
    one, two = (ticket for ticket in mill.held("env-1", "tickets") if ticket.header.group == 1)
    fail(mill, "reward-1", mill.play(one).lease)
    mill.score(mill.play(two), 0.0)
    answer = retried(mill, 1)
    assert answer.done
    assert "task 0" in answer.detail
    known = set(mill.state.groups)
    mill.refer(mill.held("reference-1", "scored")[0])
    mill.train(1)
    (fresh,) = (group for number, group in mill.state.groups.items() if number not in known)
    assert fresh.task_index == 0
    assert mill.state.next_task == 2


def test_an_open_evaluation_asks_a_failed_problem_again_and_a_closed_one_does_not(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__member_retries=0, evaluation__at_start=True)
    one, two = (ticket for ticket in mill.held("env-1", "tickets") if ticket.header.purpose == "eval")
    fail(mill, "reward-1", mill.play(one).lease)
    assert retried(mill, 1).done
    fresh = next(t for t in mill.held("env-1", "tickets") if t.header.purpose == "eval" and t.header.ticket != two.header.ticket)
    mill.score(mill.play(fresh), 1.0)
    fail(mill, "reward-1", mill.play(two).lease)
    evaluation = mill.state.evaluations[0]
    assert (evaluation.scored, evaluation.failed, evaluation.ended_at) == (1, 1, mill.now)
    answer = retried(mill, 2)
    assert not answer.done
    assert "is over" in answer.detail


def test_what_cannot_be_tried_again_says_why(a_mill: Mills) -> None:
    mill = a_mill(*ALL, broker__member_retries=0)
    assert "no dead letter 9" in retried(mill, 9).detail
    fail(mill, "reward-1", mill.play(mill.held("env-1", "tickets")[0]).lease)
    mill.say("observer", wire.StopAsked(reason="enough"), sender="observer/a")
    assert retried(mill, 1).detail == "the run is ending"


@pytest.mark.parametrize(("bound", "value"), [("LETTERS_MAX", 2), ("LETTER_BYTES_MAX", 2000)])
def test_the_oldest_makes_room_and_it_is_said(monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    monkeypatch.setattr(dead, bound, value)
    mill = Mill(broker__member_retries=0, schedule__members=4).up(*ALL)
    for ticket in mill.held("env-1", "tickets")[:4]:
        episode = mill.play(ticket)
        mill.state.messages[mill.state.leases[episode.lease].message].header = _heavy(episode.header)
        fail(mill, "reward-1", episode.lease)
    assert list(mill.state.dead) == [3, 4]
    assert mill.state.dead_dropped == 2
    gone = [message for action in mill.actions if isinstance(action, Forget) for message in action.messages]
    assert len([note for note in mill.notes if note.kind == "dead_letter_dropped"]) == 2
    assert all(letter.message not in gone for letter in mill.state.dead.values())


def _heavy(header: Header) -> Header:
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    return Header(**{**fields, "frames": (FrameInfo("msgpack", (900,), 900),)})


def test_a_record_without_a_ticket_cannot_be_tried_again(a_mill: Mills) -> None:
    mill = a_mill("trainer")
    mill.hello("sync")
    mill.commit("trainer", puts=[a_header("versions", newest_version=1, weights="w1")])
    order = mill.held("sync", "versions")[-1]
    fail(mill, "sync", order.lease)
    (letter,) = mill.state.dead.values()
    assert letter.header.newest_version == order.header.newest_version
    assert whose(letter.header)["ticket"] is None
    assert "belongs to no ticket" in retried(mill, 1).detail
