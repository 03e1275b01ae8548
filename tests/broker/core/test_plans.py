"""Step plans: formed from ready groups, voted on, recorded, and given again as recorded."""

from collections.abc import Callable

import pytest

from broker.core.state import Phase, Stand
from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill, a_header

MakeMill = Callable[..., Mill]


def test_a_plan_waits_for_enough_ready_groups(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__groups_per_step=2)
    mill.to_ready([1.0, 0.0])
    assert mill.all("trainer", wire.Plan) == []
    mill.to_ready([0.0, 1.0])
    plan = mill.last("trainer", wire.Plan)
    assert (plan.step, plan.lineage, plan.oldest_allowed_version) == (1, 0, 0)
    assert [group.rewards for group in plan.rewards] == [(1.0, 0.0), (0.0, 1.0)]
    assert plan.token_denominator == 12
    assert [header.queue for header in plan.samples] == ["samples"] * 4


def test_without_a_reference_pass_scored_samples_are_planned_at_once(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "reward-1", "trainer", "sync", algorithm__kl_coefficient=0.0)
    mill.to_ready([1.0, 0.0])
    assert [header.queue for header in mill.last("trainer", wire.Plan).samples] == ["scored", "scored"]


def test_a_plan_says_which_version_is_too_old(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__max_lag=1)
    for step, oldest in [(1, 0), (2, 0), (3, 1)]:
        mill.to_ready([1.0, 0.0])
        assert mill.last("trainer", wire.Plan).step == step
        assert mill.last("trainer", wire.Plan).oldest_allowed_version == oldest
        mill.train(step)


def test_a_committed_vote_trains_provisionally_and_a_checkpoint_finally(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    mill.vote(1)
    assert mill.last("trainer", wire.StepCommitted).step == 1
    assert (mill.state.ledger.provisional, mill.state.ledger.trained) == (2, 0)
    mill.send("trainer", wire.CheckpointSaved(step=1))
    assert (mill.state.ledger.provisional, mill.state.ledger.trained) == (0, 2)
    assert 1 not in mill.state.steps


def test_a_failed_vote_voids_the_plan_and_plans_the_same_samples(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    first = mill.last("trainer", wire.Plan)
    mill.vote(1, ok=False)
    assert mill.last("trainer", wire.PlanVoided).step == 1
    assert len(mill.all("trainer", wire.Plan)) == 2
    assert mill.last("trainer", wire.Plan) == first
    mill.vote(1)
    assert mill.last("trainer", wire.StepCommitted).step == 1


def test_a_plan_that_always_fails_ends_the_run_with_the_trainers_name(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    for _ in range(3):
        mill.vote(1, ok=False)
    assert mill.state.failure is not None
    assert mill.state.failure.stage == "actor-train"


def test_a_trainer_killed_before_its_vote_gets_the_recorded_plan(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    plan = mill.last("trainer", wire.Plan)
    mill.hello("trainer", incarnation="b", resume_step=0)
    assert len(mill.all("trainer", wire.Plan)) == 1
    mill.publish(0)
    assert mill.all("trainer", wire.Plan) == [plan, plan]


def test_a_trainer_killed_after_its_commit_gets_the_recorded_plan_and_the_recorded_answer(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    plan = mill.last("trainer", wire.Plan)
    mill.vote(1)
    mill.hello("trainer", incarnation="b", resume_step=0)
    mill.publish(0)
    assert mill.all("trainer", wire.Plan) == [plan, plan]
    mill.vote(1, ok=False)  # it was committed: the answer stands
    assert [message.step for message in mill.all("trainer", wire.StepCommitted)] == [1, 1]
    assert mill.all("trainer", wire.PlanVoided) == []
    assert mill.state.ledger.provisional == 2


def test_a_trainer_killed_after_its_checkpoint_makes_the_step_final_by_coming_back(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    mill.vote(1)
    mill.hello("trainer", incarnation="b", resume_step=1)
    assert mill.state.ledger.trained == 2
    mill.publish(1)
    mill.to_ready([0.0, 1.0])
    assert mill.last("trainer", wire.Plan).step == 2


def test_a_trainer_that_announces_its_version_again_over_a_plan_in_hand_gets_no_second_plan(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    first = mill.last("trainer", wire.Plan)
    mill.restart()
    for name in ALL:
        mill.hello(name, holds=tuple(lease.id for lease in mill.state.leases.values() if lease.client == name),
                   installed=0 if name == "rollout-1" else None, resume_step=0)  # fmt: skip
    mill.publish(0)
    mill.to_ready([0.0, 1.0])  # another group is ready: it must wait for its own step
    assert {plan.step: plan for plan in mill.all("trainer", wire.Plan)} == {1: first}
    mill.train(1)
    assert mill.last("trainer", wire.Plan).step == 2
    assert mill.last("trainer", wire.Plan).rewards != first.rewards


def test_steps_that_are_made_again_come_one_after_the_other(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__max_lag=2, stages__actor_train__checkpoint_every=3)
    for step in (1, 2):
        mill.to_ready([1.0, 0.0])
        mill.vote(step)
        mill.publish(step)
        mill.install("rollout-1")
    mill.hello("trainer", incarnation="b", resume_step=0)
    mill.publish(0)
    mill.restart()
    mill.hello("trainer", resume_step=0)
    mill.publish(0)  # announced again while step 1 is in its hands
    assert [plan.step for plan in mill.all("trainer", wire.Plan)][2:] == [1, 1]
    mill.vote(1)
    mill.publish(1)
    assert mill.last("trainer", wire.Plan).step == 2


def test_a_checkpoint_that_the_journal_does_not_know_ends_the_run(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.hello("trainer", incarnation="b", resume_step=7)
    assert mill.state.failure is not None
    assert "another run" in mill.state.failure.advice


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_run_whose_newest_checkpoint_was_damaged_goes_on_from_the_older_one(a_mill: MakeMill, kind: str) -> None:
    mill = a_mill(*ALL, schedule__kind=kind)
    mill.to_ready([1.0, 0.0])
    mill.train(1)
    mill.to_ready([1.0, 0.0], version=1)
    mill.train(2)
    mill.hello("trainer", incarnation="b", resume_step=1)
    assert mill.state.trainer.lineage == 1
    mill.publish(1)
    mill.install("rollout-1")
    assert mill.state.clients["rollout-1"].installed == 1
    for step in (2, 3):
        mill.to_ready([0.0, 1.0], version=step - 1)
        assert (mill.last("trainer", wire.Plan).step, mill.last("trainer", wire.Plan).lineage) == (step, 1)
        mill.train(step)
    assert mill.state.phase is Phase.CLOSING


def test_a_run_that_was_stopped_between_commit_and_checkpoint_goes_on(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    mill.vote(1)
    mill.say("env-1", wire.StopAsked(reason="signal"))
    mill.wait(6)
    assert mill.state.phase is Phase.CLOSED
    mill.restart()
    for name in ("env-1", "rollout-1", "reward-1", "reference-1", "sync"):
        mill.hello(name, incarnation="b")
    mill.hello("trainer", incarnation="b", resume_step=0)
    mill.publish(0)
    mill.install("rollout-1")
    mill.to_ready([1.0, 0.0])
    assert mill.last("trainer", wire.Plan).step == 1
    mill.train(1)
    assert mill.state.trainer.step == 1


def test_a_vote_without_a_plan_changes_nothing(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.vote(1)
    assert mill.all("trainer", wire.StepCommitted) == []
    assert mill.state.trainer.step == 0


def test_a_step_without_its_checkpoint_does_not_hold_the_end_of_the_run(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__steps=1, stages__actor_train__checkpoint_every=2)
    mill.to_ready([1.0, 0.0])
    mill.vote(1)
    mill.publish(1)
    assert mill.state.phase is Phase.CLOSING
    assert mill.all("trainer", wire.Drain) != []
    assert mill.state.ledger.trained == 2


def test_a_planned_ticket_stands_in_its_plan_alone(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    assert [mill.state.tickets[ticket].stand for ticket in mill.state.steps[1].tickets] == [Stand.PLANNED] * 2
    assert all(ticket.stand is Stand.PLANNED for ticket in mill.state.tickets.values() if ticket.id in mill.state.steps[1].tickets)
    mill.commit("reference-1", puts=[a_header("samples", ticket=mill.state.steps[1].tickets[0], group=1, member=0, attempt=1)])
    assert mill.last("reference-1", wire.Refuse).reason == "late"
