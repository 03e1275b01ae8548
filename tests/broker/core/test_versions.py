"""Versions, installs, receipts, and evaluations that pin them."""

from collections.abc import Callable

from broker.core.evaluations import measure
from broker.core.state import Phase
from broker.status import status, summary
from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill

MakeMill = Callable[..., Mill]


def wanted(mill: Mill, replica: str) -> list[int | None]:
    """Versions that a replica was ordered to install, in order."""
    return [order.header.newest_version for order in mill.all(replica, wire.InstallOrder)]


def test_no_ticket_is_admitted_before_a_replica_has_a_receipt(a_mill: MakeMill) -> None:
    mill = a_mill("env-1")
    for name in ("rollout-1", "trainer", "sync"):
        mill.hello(name)
    mill.publish(0)
    assert mill.state.phase is Phase.STARTING
    assert mill.held("env-1", "tickets") == []
    mill.install("rollout-1")
    assert mill.state.phase is Phase.RUNNING
    assert mill.held("env-1", "tickets") != []


def test_a_receipt_with_another_digest_is_no_receipt(a_mill: MakeMill) -> None:
    mill = a_mill()
    for name in ("env-1", "rollout-1", "trainer", "sync"):
        mill.hello(name)
    mill.publish(0)
    mill.install("rollout-1", digest="something else")
    assert mill.state.clients["rollout-1"].installed is None
    assert wanted(mill, "rollout-1") == [0, 0]
    mill.install("rollout-1")
    assert mill.state.clients["rollout-1"].installed == 0


def test_weights_that_cannot_be_installed_end_the_run_with_the_replicas_name(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.publish(1)
    for _ in range(3):
        mill.send("rollout-1", wire.InstallFailed(number=1, reason="no such file"))
    assert mill.state.failure is not None
    assert mill.state.failure.stage == "rollout-1"


def test_a_late_replica_gets_the_current_version_before_its_first_turn(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.publish(1)
    mill.install("rollout-1")
    mill.hello("rollout-2", windows={"turns": 8})
    assert wanted(mill, "rollout-2") == [1]
    for ticket in mill.held("env-1", "tickets")[:3]:
        mill.turn(ticket, "env-1")
    assert mill.held("rollout-2", "turns") == []
    mill.install("rollout-2")
    mill.turn(mill.held("env-1", "tickets")[3], "env-1")
    assert len(mill.held("rollout-2", "turns")) == 1


def test_a_version_made_again_with_an_equal_digest_is_adopted(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    mill.to_ready([1.0, 0.0])
    mill.train(1)
    orders = wanted(mill, "rollout-1")
    mill.hello("trainer", incarnation="b", resume_step=1)
    mill.publish(1)
    assert wanted(mill, "rollout-1") == orders
    assert mill.state.trainer.lineage == 0
    assert mill.state.ledger.dropped == {}


def test_a_step_made_again_with_another_result_raises_the_lineage_once_and_drops_what_it_sampled(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__max_lag=2, schedule__steps=6, stages__actor_train__checkpoint_every=5)
    for step in (1, 2):
        mill.to_ready([1.0, 0.0])
        mill.vote(step)
        mill.publish(step)
        mill.install("rollout-1")
    playing, waiting = mill.held("env-1", "tickets")[:2]
    assert playing.header.group == waiting.header.group
    mill.turn(playing, "env-1")
    mill.action("rollout-1", mill.turns_held()[0], version=2)
    untouched = mill.held("env-1", "tickets")[2]
    mill.turn(untouched, "env-1")
    begun = mill.turns_held()[0]
    mill.hello("trainer", incarnation="b", resume_step=0)
    mill.publish(0)
    mill.vote(1)
    mill.publish(1, digest="other")
    assert mill.state.trainer.lineage == 1
    assert mill.state.ledger.dropped == {"lost_version": 2}
    assert playing.header.ticket not in mill.state.tickets
    assert untouched.header.ticket in mill.state.tickets
    assert wire.Abort(lease=begun.lease) in mill.all("rollout-1", wire.Abort)
    assert wanted(mill, "rollout-1")[-1] == 1
    mill.install("rollout-1", digest="other")
    assert mill.state.clients["rollout-1"].installed == 1
    assert [d.header.ticket for d in mill.turns_held()] == [untouched.header.ticket]
    mill.vote(2)
    mill.publish(2, digest="another")
    assert mill.state.trainer.lineage == 1
    assert wanted(mill, "rollout-1")[-1] == 2


def test_a_plan_that_waits_for_a_trainer_loses_what_a_lost_version_sampled(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__max_lag=2, schedule__steps=6, stages__actor_train__checkpoint_every=5)
    mill.to_ready([1.0, 0.0])
    mill.vote(1)
    mill.publish(1)
    mill.install("rollout-1")
    mill.to_ready([1.0, 0.0], version=1)
    assert mill.last("trainer", wire.Plan).step == 2
    mill.hello("trainer", incarnation="b", resume_step=0)
    mill.publish(0)
    mill.vote(1)
    mill.publish(1, digest="other")
    mill.install("rollout-1", digest="other")
    assert mill.state.ledger.dropped == {"lost_version": 2}
    assert list(mill.state.steps) == [1]
    mill.to_ready([0.0, 1.0], version=1)
    assert mill.last("trainer", wire.Plan).step == 2


def test_installs_wait_while_an_evaluation_is_open_and_come_when_it_ends(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, evaluation__at_start=True, evaluation__problems=2, schedule__max_lag=2)
    problems = [d for d in mill.held("env-1", "tickets") if d.header.purpose == "eval"]
    assert len(problems) == 2
    mill.to_ready([1.0, 0.0])
    mill.train(1)
    assert wanted(mill, "rollout-1") == [0]
    for problem, reward in zip(problems, (1.0, 0.0), strict=True):
        mill.score(mill.play(problem), reward)
    assert wanted(mill, "rollout-1") == [0, 1]
    evaluation = mill.state.evaluations[0]
    assert (evaluation.version, evaluation.scored, evaluation.reward_sum) == (0, 2, 1.0)
    assert mill.state.ledger.evaluated == 2


def test_a_replica_that_comes_during_an_evaluation_gets_its_version(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, evaluation__at_start=True, schedule__max_lag=2)
    mill.to_ready([1.0, 0.0])
    mill.train(1)
    mill.hello("rollout-1", incarnation="b", windows={})
    assert wanted(mill, "rollout-1")[-1] == 0


def test_training_does_not_run_away_from_an_open_evaluation(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, evaluation__at_start=True, evaluation__problems=1, schedule__max_lag=1, stages__env__sessions=64)
    for step in (1, 2):
        mill.to_ready([1.0, 0.0])
        mill.train(step)
    assert [d for d in mill.held("env-1", "tickets") if d.header.purpose == "train"] == []
    mill.score(mill.play(mill.held("env-1", "tickets")[0]), 1.0)
    mill.install("rollout-1")
    assert [d for d in mill.held("env-1", "tickets") if d.header.purpose == "train"] != []


def test_in_a_sync_round_training_goes_on_after_an_evaluation_that_outlasted_the_step(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__kind="sync", evaluation__at_start=True, evaluation__problems=1)
    problem = next(d for d in mill.held("env-1", "tickets") if d.header.purpose == "eval")
    mill.to_ready([1.0, 0.0])
    mill.train(1)
    mill.score(mill.play(problem), 1.0)
    mill.install("rollout-1")
    mill.to_ready([1.0, 0.0], version=1)
    assert mill.last("trainer", wire.Plan).step == 2


def test_turns_of_a_sync_round_go_only_to_replicas_with_a_receipt_for_its_version(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, "rollout-2", schedule__kind="sync", schedule__members=2)
    mill.to_ready([1.0, 0.0])
    mill.vote(1)
    mill.send("trainer", wire.CheckpointSaved(step=1))
    mill.publish(1)
    mill.install("rollout-2")
    for ticket in mill.held("env-1", "tickets"):
        mill.turn(ticket, "env-1")
    assert len(mill.held("rollout-2", "turns")) == 2
    assert mill.held("rollout-1", "turns") == []


def test_a_failed_held_out_problem_counts_as_not_solved(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, evaluation__at_start=True, evaluation__problems=2, broker__member_retries=0)
    first, second = [d for d in mill.held("env-1", "tickets") if d.header.purpose == "eval"]
    mill.commit("env-1", fails=[wire.Failure(lease=first.lease, boundary="env", reason="told so")])
    mill.score(mill.play(second), 1.0)
    note = next(note for note in mill.notes if note.kind == "evaluation_done")
    assert note.numbers["accuracy"] == 0.5


def test_an_evaluation_of_which_all_failed_has_measured_nothing(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, evaluation__at_start=True, evaluation__problems=2, broker__member_retries=0)
    for problem in [d for d in mill.held("env-1", "tickets") if d.header.purpose == "eval"]:
        mill.commit("env-1", fails=[wire.Failure(lease=problem.lease, boundary="env", reason="told so")])
    note = next(note for note in mill.notes if note.kind == "evaluation_done")
    assert "accuracy" not in note.numbers
    assert note.numbers["failed"] == 2
    told = summary(mill.state, 1.0)
    assert (told["accuracy_before"], told["evaluation_failed_before"]) == (None, 2)
    (row,) = status(mill.state, 1.0)["evaluation"]
    assert (row["accuracy"], row["scored"], row["failed"], row["done"]) == (None, 2, 2, True)


def test_the_mean_of_rewards_between_0_and_1_is_not_called_accuracy(a_mill: MakeMill) -> None:
    for rewards, name in (([1.0, 0.0], "accuracy"), ([1.0, 0.5], "mean reward")):
        mill = a_mill(*ALL, evaluation__at_start=True, evaluation__problems=2)
        problems = [d for d in mill.held("env-1", "tickets") if d.header.purpose == "eval"]
        for problem, reward in zip(problems, rewards, strict=True):
            mill.score(mill.play(problem), reward)
        assert measure(mill.state.evaluations[0]) == name
