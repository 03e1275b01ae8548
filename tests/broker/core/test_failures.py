"""Failures and deaths: how often a ticket is tried, and what becomes of its group."""

from collections.abc import Callable

from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill, a_header

MakeMill = Callable[..., Mill]


def fail(mill: Mill, name: str, lease: int, boundary: str = "env") -> None:
    """A stage reports that it could not process a record."""
    mill.commit(name, fails=[wire.Failure(lease=lease, boundary=boundary, reason="told so")])


def test_a_reported_failure_is_a_new_attempt_until_the_members_retries_are_spent(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, broker__member_retries=2, schedule__members=4)
    ticket = mill.held("env-1", "tickets")[0].header.ticket
    for attempt in (1, 2, 3):
        held = next(d for d in mill.held("env-1", "tickets") if d.header.ticket == ticket)
        assert held.header.attempt == attempt
        fail(mill, "env-1", held.lease)
    assert ticket not in mill.state.tickets
    assert mill.state.ledger.failed == {"env": 1}


def test_an_env_that_dies_too_often_over_a_ticket_makes_it_a_dead_letter(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, broker__max_deliveries=3, schedule__members=2, stages__env__sessions=1)
    ticket = mill.held("env-1", "tickets")[0].header.ticket
    for process in "bcd":
        assert ticket in mill.state.tickets
        mill.hello("env-1", incarnation=process)
    assert ticket not in mill.state.tickets
    assert mill.state.ledger.failed["dead_letter"] >= 1


def test_a_record_that_kills_its_consumers_becomes_a_dead_letter_of_its_ticket(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, broker__max_deliveries=3)
    episode = mill.play(mill.held("env-1", "tickets")[0])
    for process in "bcd":
        assert [d.delivery for d in mill.held("reward-1", "episodes")] == ["bcd".index(process) + 1]
        mill.hello("reward-1", incarnation=process)
    assert mill.held("reward-1", "episodes") == []
    assert episode.header.ticket not in mill.state.tickets
    assert mill.state.ledger.failed == {"dead_letter": 1}


def test_a_version_that_cannot_be_processed_ends_the_run(a_mill: MakeMill) -> None:
    mill = a_mill("trainer", "sync", broker__max_deliveries=2)
    mill.commit("trainer", puts=[a_header("versions", newest_version=1, weights="w1")])
    for process in "bc":
        mill.hello("sync", incarnation=process)
    assert mill.state.failure is not None
    assert mill.state.failure.stage == "versions"


def test_a_failed_turn_is_sampled_anew_with_the_whole_context(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    ticket = mill.held("env-1", "tickets")[0]
    mill.turn(ticket, "env-1")
    mill.action("rollout-1", mill.turns_held()[0])
    mill.turn(ticket, "env-1", answers=mill.held("env-1", "actions")[0].lease, number=1)
    turn = mill.turns_held()[0]
    assert turn.context == 0
    fail(mill, "rollout-1", turn.lease, "rollout")
    again = mill.turns_held()[0]
    assert (again.header.turn, again.held_tokens, again.context, again.delivery) == (1, 0, 2, 2)
    assert mill.state.tickets[ticket.header.ticket].failures == 1
    assert mill.state.tickets[ticket.header.ticket].attempt == 1


def test_a_group_trains_without_the_member_that_failed(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__members=3, schedule__min_members=2, broker__member_retries=0)
    lost, *rest = mill.held("env-1", "tickets")[:3]
    fail(mill, "env-1", lost.lease)
    for ticket, reward in zip(rest, (1.0, 0.0), strict=True):
        mill.score(mill.play(ticket), reward)
    for sample in mill.held("reference-1", "scored"):
        mill.refer(sample)
    plan = mill.last("trainer", wire.Plan)
    assert [group.rewards for group in plan.rewards] == [(1.0, 0.0)]


def test_the_last_members_failure_settles_its_group(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__members=3, schedule__min_members=2, broker__member_retries=0)
    lost, *rest = mill.held("env-1", "tickets")[:3]
    for ticket, reward in zip(rest, (1.0, 0.0), strict=True):
        mill.score(mill.play(ticket), reward)
    assert mill.held("reference-1", "scored") == []
    fail(mill, "env-1", lost.lease)
    assert len(mill.held("reference-1", "scored")) == 2


def test_a_group_with_too_few_members_left_is_broken_and_another_takes_its_place(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__members=2, schedule__min_members=2, schedule__max_lag=0, broker__member_retries=0)
    lost, kept = mill.held("env-1", "tickets")
    mill.score(mill.play(kept), 1.0)
    fail(mill, "env-1", lost.lease)
    assert mill.state.ledger.failed == {"env": 1}
    assert mill.state.ledger.dropped == {"group_broken": 1}
    fresh = mill.held("env-1", "tickets")
    assert {d.header.group for d in fresh} == {2}
    assert len(fresh) == 2


def test_a_uniform_group_is_dropped_before_reference_and_refilled_up_to_the_rounds_limit(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__drop_uniform=True, schedule__groups_per_step=2, schedule__max_refills=0.5, schedule__max_lag=0)
    mill.to_ready([1.0, 1.0])
    assert mill.state.ledger.dropped == {"no_spread": 2}
    assert len(mill.held("env-1", "tickets")) == 4  # the other group and the refill
    mill.to_ready([0.0, 0.0])  # the limit of 0.5 x 2 is used up: a uniform group is kept
    assert mill.state.ledger.dropped == {"no_spread": 2}
    mill.to_ready([1.0, 0.0])
    plan = mill.last("trainer", wire.Plan)
    assert [group.rewards for group in plan.rewards] == [(0.0, 0.0), (1.0, 0.0)]
    mill.train(1)
    mill.to_ready([1.0, 1.0], version=1)  # a new round, new refills
    assert mill.state.ledger.dropped == {"no_spread": 4}


def test_a_lease_past_its_hard_deadline_goes_back_even_from_a_client_that_lives(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, broker__lease_s={"episodes": 20.0})
    late = mill.play(mill.held("env-1", "tickets")[0])
    mill.wait(21, *ALL)
    assert wire.Abort(lease=late.lease) in mill.all("reward-1", wire.Abort)
    again = mill.held("reward-1", "episodes")
    assert [(d.header.ticket, d.delivery) for d in again] == [(late.header.ticket, 2)]
    mill.score(late, 1.0)
    assert mill.last("reward-1", wire.Refuse).reason == "stale_lease"
