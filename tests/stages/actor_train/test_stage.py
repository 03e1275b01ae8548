"""The trainer's stage, driven through a link to nobody."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schemas.errors import ConfigError, InvariantError, WireError
from schemas.messages import (
    CheckpointSaved,
    Fence,
    Grant,
    GrantAsked,
    GrantReleased,
    Plan,
    PlanVoided,
    StepCommitted,
    Voted,
)
from schemas.records import Sample, Version, VersionSpan
from stages.actor_train.checkpoint import checkpoint_path
from stages.actor_train.settings import train_settings
from stages.actor_train.stage import ActorTrain
from stages.model.checkpoint import read_state
from stages.model.decoder import Decoder
from stages.model.errors import CheckpointError
from stages.model.tensor_file import directory_tensors
from tests.stages.fake_link import CommitSeen, FakeLink
from tests.stages.training_builders import a_config, a_group, a_plan, a_sample, a_starting_model, a_welcome, scored

Work = tuple[Plan, list[Any]]


class Bench:
    """A trainer, its link, and a broker's part in a few words."""

    def __init__(self, run: Path, **sections: Any) -> None:
        model = run / "model"
        if not model.exists():
            a_starting_model(model)
        self.now = 0.0
        self.link = FakeLink(str(run))
        self.stage = ActorTrain(clock=self.tick)
        self.stage.start(a_welcome(a_config(model, **sections), run), self.link)
        self.ready = self.stage.hello()
        self.work()

    def tick(self) -> float:
        self.now += 0.25
        return self.now

    def work(self) -> None:
        while self.stage.work():
            pass

    def vote(self, work: Work, grant: int = 1) -> Voted:
        self.stage.order(work[0], work[1])
        self.stage.order(Grant(grant=grant), ())
        self.work()
        return self.link.messages(Voted)[-1]

    def commit(self, work: Work) -> None:
        assert self.vote(work, grant=work[0].step).ok
        self.stage.order(StepCommitted(step=work[0].step), ())
        self.work()

    @property
    def decoder(self) -> Decoder:
        return self.stage.history.trainer.decoder

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.decoder.state_dict().items()}

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.link.said]


def steps(count: int) -> list[Work]:
    return [a_plan(step, [a_group(10 * step + g, version=step - 1) for g in range(2)]) for step in range(1, count + 1)]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_new_trainer_publishes_the_starting_model_as_version_0(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.ready.resume_step == 0
    (version,) = bench.link.records(Version)
    assert (version.lineage, version.number) == (0, 0)
    assert Path(version.location) == tmp_path / "versions" / "0-0"
    assert directory_tensors(version.location) == version.tensors
    (put,) = bench.link.commits[0].puts
    assert (put.header.newest_version, put.header.lineage, put.header.weights) == (0, 0, version.digest)


def test_weights_change_only_after_the_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    before = bench.weights()
    (work,) = steps(1)
    assert bench.vote(work).ok
    assert same(bench.weights(), before)
    bench.stage.order(StepCommitted(step=1), ())
    assert same(bench.weights(), before)
    bench.work()
    assert not same(bench.weights(), before)


def test_the_slot_is_asked_for_after_the_plan_and_given_back_after_the_vote(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (work,) = steps(1)
    bench.commit(work)
    assert bench.kinds() == [
        "CommitSeen", "GrantAsked", "Voted", "GrantReleased", "CheckpointSaved", "CommitSeen",
    ]  # fmt: skip
    (released,) = bench.link.messages(GrantReleased)
    assert released.grant == 1
    assert released.busy_seconds > 0


def test_the_checkpoint_is_durable_before_it_is_announced_and_announced_before_the_version(tmp_path: Path) -> None:
    class Watching(FakeLink):
        seen: list[tuple[str, bool]] = []  # noqa: RUF012 - one test, one instance

        def send(self, message: Any) -> None:
            super().send(message)
            if isinstance(message, CheckpointSaved):
                self.seen.append(("saved", checkpoint_path(tmp_path / "checkpoints", 1).exists()))

        def commit(self, **what: Any) -> None:
            super().commit(**what)
            self.seen.append(("version", checkpoint_path(tmp_path / "checkpoints", 1).exists()))

    bench = Bench(tmp_path)
    watching = Watching(str(tmp_path))
    bench.stage.link = bench.link = watching
    bench.commit(steps(1)[0])
    assert watching.seen == [("saved", True), ("version", True)]


def test_every_step_puts_its_version(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for work in steps(3):
        bench.commit(work)
    versions = bench.link.records(Version)
    assert [version.number for version in versions] == [0, 1, 2, 3]
    assert len({version.digest for version in versions}) == 4
    assert same(read_state(versions[3].location), bench.weights())


def test_killed_between_vote_and_commit_a_trainer_resumes_to_the_same_bits(tmp_path: Path) -> None:
    works = steps(4)
    straight = Bench(tmp_path / "straight")
    for work in works:
        straight.commit(work)
    run = tmp_path / "killed"
    first = Bench(run)
    first.commit(works[0])
    first.commit(works[1])
    assert first.vote(works[2]).ok
    second = Bench(run)
    assert second.ready.resume_step == 2
    assert second.link.records(Version)[0] == first.link.records(Version)[-1]
    for work in works[2:]:
        second.commit(work)
    assert same(second.weights(), straight.weights())
    digests = [bench.link.records(Version)[-1].digest for bench in (straight, second)]
    assert digests[0] == digests[1]


def test_killed_between_checkpoint_and_version_a_trainer_publishes_it_when_it_is_back(tmp_path: Path) -> None:
    works = steps(2)
    first = Bench(tmp_path)
    first.vote(works[0])
    first.stage.order(StepCommitted(step=1), ())
    assert first.stage.work()
    assert [version.number for version in first.link.records(Version)] == [0]
    second = Bench(tmp_path)
    assert second.ready.resume_step == 1
    (version,) = second.link.records(Version)
    assert version.number == 1
    assert same(read_state(version.location), first.weights())


def test_a_step_that_is_made_anew_gives_the_same_version_record(tmp_path: Path) -> None:
    """Steps between checkpoints were published; remade from the same plans they are adopted, not given a new lineage."""
    every = {"actor_train": {"checkpoint_every": 3}}
    works = steps(3)
    first = Bench(tmp_path, stages=every)
    for work in works[:2]:
        first.commit(work)
    assert first.link.messages(CheckpointSaved) == []
    second = Bench(tmp_path, stages=every)
    assert second.ready.resume_step == 0
    for work in works:
        second.commit(work)
    assert second.link.records(Version)[:3] == first.link.records(Version)
    assert [saved.step for saved in second.link.messages(CheckpointSaved)] == [3]


def test_micro_batches_are_one_piece_of_work_each(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stages={"actor_train": {"micro_batch_tokens": 40}})
    plan, frames = steps(1)[0]
    bench.stage.order(plan, frames)
    assert not bench.stage.work()
    bench.stage.order(Grant(grant=1), ())
    assert bench.stage.in_hand is not None
    batches = len(bench.stage.in_hand.batches)
    assert batches >= 4
    for _ in range(batches - 1):
        assert bench.stage.work()
        assert bench.link.messages(Voted) == []
    assert bench.stage.work()
    assert len(bench.link.messages(Voted)) == 1


def test_a_loss_that_is_not_finite_votes_no_and_leaves_the_weights_untouched(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    before = bench.weights()
    broken = [a_sample(seed, reward=float(seed % 2)) for seed in range(4)]
    broken[1] = with_logprobs(broken[1], np.full(len(broken[1].tokens), np.nan, np.float32))
    vote = bench.vote(a_plan(1, [broken]))
    assert not vote.ok
    assert "not finite" in vote.reason
    assert all(parameter.grad is None for parameter in bench.decoder.parameters())
    bench.stage.order(PlanVoided(step=1), ())
    bench.work()
    assert same(bench.weights(), before)
    bench.commit(steps(1)[0])
    assert bench.stage.history.step == 1


def with_logprobs(sample: Sample, logprobs: np.ndarray) -> Sample:
    fields = {name: getattr(sample, name) for name in sample.__struct_fields__}
    return Sample(**fields | {"logprobs": logprobs})


def test_a_commit_against_the_vote_is_a_broken_promise(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    broken = [with_logprobs(sample, np.full(len(sample.tokens), np.nan, np.float32)) for sample in a_group(1)]
    assert not bench.vote(a_plan(1, [broken])).ok
    with pytest.raises(InvariantError, match="against"):
        bench.stage.order(StepCommitted(step=1), ())


def test_a_voided_plan_leaves_no_gradient_behind(tmp_path: Path) -> None:
    works = steps(2)
    straight = Bench(tmp_path / "straight")
    straight.commit(works[0])
    voided = Bench(tmp_path / "voided")
    other = a_plan(1, [a_group(77), a_group(78)])
    assert voided.vote(other).ok
    voided.stage.order(PlanVoided(step=1), ())
    voided.commit(works[0])
    assert same(voided.weights(), straight.weights())


@pytest.mark.parametrize("step", [1, 3])
def test_a_plan_that_is_not_the_next_one_is_refused_naming_both(tmp_path: Path, step: int) -> None:
    bench = Bench(tmp_path)
    bench.commit(steps(1)[0])
    plan, frames = a_plan(step, [a_group(1)])
    with pytest.raises(InvariantError, match=rf"step {step}\b.*taken 1 steps.*step 2"):
        bench.stage.order(plan, frames)


def test_a_fenced_grant_is_asked_for_again_and_nothing_is_computed_twice(tmp_path: Path) -> None:
    sections = {"stages": {"actor_train": {"micro_batch_tokens": 40}}}
    work = steps(1)[0]
    straight = Bench(tmp_path / "straight", **sections)
    straight.commit(work)
    bench = Bench(tmp_path / "fenced", **sections)
    bench.stage.order(work[0], work[1])
    bench.stage.order(Grant(grant=5), ())
    bench.stage.work()
    bench.stage.order(Fence(grant=5), ())
    assert not bench.stage.work()
    assert len(bench.link.messages(GrantAsked)) == 2
    bench.stage.order(Grant(grant=6), ())
    bench.work()
    bench.stage.order(StepCommitted(step=1), ())
    bench.work()
    assert [released.grant for released in bench.link.messages(GrantReleased)] == [6]
    assert same(bench.weights(), straight.weights())


def test_a_grant_that_comes_too_late_goes_back_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stage.order(Grant(grant=9), ())
    assert [released.grant for released in bench.link.messages(GrantReleased)] == [9]


def test_after_a_reconnect_nothing_is_put_twice_and_the_step_in_hand_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.ready.step_in_hand is None
    work = steps(1)[0]
    assert bench.vote(work).ok
    ready = bench.stage.hello()
    assert (ready.resume_step, ready.step_in_hand) == (0, 1)
    bench.work()
    assert [version.number for version in bench.link.records(Version)] == [0]
    bench.stage.order(StepCommitted(step=1), ())
    bench.stage.order(StepCommitted(step=1), ())
    bench.work()
    bench.stage.order(StepCommitted(step=1), ())
    assert bench.stage.history.step == 1
    assert (bench.stage.hello().resume_step, bench.stage.hello().step_in_hand) == (1, None)


def test_a_plan_that_comes_twice_is_voted_on_again_and_computed_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    work = steps(1)[0]
    first = bench.vote(work)
    bench.stage.order(work[0], work[1])
    assert bench.link.messages(Voted) == [first, first]
    assert len(bench.link.messages(GrantAsked)) == 1


def test_an_answer_that_the_broker_had_recorded_is_applied_once_the_gradient_is_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan, frames = steps(1)[0]
    bench.stage.order(plan, frames)
    bench.stage.order(StepCommitted(step=1), ())
    bench.stage.order(Grant(grant=1), ())
    bench.work()
    assert bench.stage.history.step == 1


def test_a_drained_trainer_has_saved_all_it_has_learnt(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stages={"actor_train": {"checkpoint_every": 10}})
    bench.commit(steps(1)[0])
    assert not bench.stage.drained()
    bench.work()
    assert bench.stage.drained()
    assert [saved.step for saved in bench.link.messages(CheckpointSaved)] == [1]


def test_a_damaged_checkpoint_resumes_from_the_one_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for work in steps(2):
        bench.commit(work)
    (checkpoint_path(tmp_path / "checkpoints", 2) / "optimizer.safetensors").write_bytes(b"\0" * 64)
    assert Bench(tmp_path).ready.resume_step == 1


def test_frames_that_do_not_belong_to_the_plan_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan, frames = steps(1)[0]
    with pytest.raises(WireError, match="frames"):
        bench.stage.order(plan, [*frames, b""])
    with pytest.raises(WireError):
        bench.stage.order(plan, frames[:-7])


def test_a_sample_that_has_not_passed_the_reference_is_voted_against_with_the_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    group = a_group(1, ref_logprobs=np.empty(0, np.float32))
    bench.stage.order(*a_plan(1, [group]))
    vote = bench.link.messages(Voted)[-1]
    assert (vote.step, vote.ok) == (1, False)
    assert "reference stage" in vote.reason
    assert bench.vote(a_plan(1, [a_group(1)])).ok


def test_without_a_kl_coefficient_no_reference_is_needed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, algorithm={"kl_coefficient": 0.0})
    vote = bench.vote(a_plan(1, [a_group(1, ref_logprobs=np.empty(0, np.float32))]))
    assert vote.ok
    assert vote.metrics["kl/reference"] == 0.0


def test_the_learning_rate_warms_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, algorithm={"warmup_steps": 4, "learning_rate": 1e-3})
    rates = []
    for work in steps(6):
        bench.commit(work)
        rates.append(bench.link.messages(Voted)[-1].metrics["optim/learning_rate"])
        assert all(group["lr"] == rates[-1] for group in bench.stage.history.trainer.optimizer.param_groups)
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_recomputed_log_probs_agree_where_one_version_sampled_and_cached_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    agree = a_group(1, bench.decoder)
    stale = a_group(2, version=0, kv_spans=(VersionSpan(0, 5, 0), VersionSpan(5, 8, 1)))
    metrics = bench.vote(a_plan(1, [agree, stale])).metrics
    assert metrics["mismatch/tokens"] == sum(sample.loss_mask.sum() for sample in agree)
    assert metrics["mismatch/mean_abs_logprob_difference"] < 1e-5
    assert metrics["mismatch/mean_abs_logprob_difference_all"] > 0.1


def test_an_older_version_that_sampled_all_is_not_held_to_agree(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.commit(steps(1)[0])
    metrics = bench.vote(a_plan(2, [a_group(1, bench.decoder, version=1), a_group(2, version=0)])).metrics
    assert metrics["mismatch/tokens"] == sum(sample.loss_mask.sum() for sample in a_group(1))
    assert metrics["mismatch/mean_abs_logprob_difference"] < 1e-5


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_recomputed_log_probs_agree_under_temperature_and_kept_ids(tmp_path: Path, temperature: float) -> None:
    bench = Bench(tmp_path)
    warm = [at_temperature(sample, bench.decoder, temperature) for sample in a_group(1)]
    cut = [with_kept_ids(sample, bench.decoder, keep=6) for sample in a_group(2)]
    metrics = bench.vote(a_plan(1, [warm, cut])).metrics
    assert metrics["mismatch/tokens"] == sum(sample.loss_mask.sum() for sample in [*warm, *cut])
    assert metrics["mismatch/mean_abs_logprob_difference"] < 1e-5


def at_temperature(sample: Sample, decoder: Decoder, temperature: float) -> Sample:
    fields = {name: getattr(sample, name) for name in sample.__struct_fields__}
    logprobs = scored(decoder, sample.tokens, sample.loss_mask, temperature)
    return Sample(**fields | {"logprobs": logprobs, "ref_logprobs": logprobs, "temperature": temperature})


def with_kept_ids(sample: Sample, decoder: Decoder, keep: int) -> Sample:
    """Top-k in plain numpy, the sampled token always among the kept; the k differs from token to token."""
    tokens = torch.from_numpy(sample.tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits = decoder(tokens)[0].double().numpy()
    logprobs, ids, counts = np.zeros(len(sample.tokens)), [], []
    for at in np.flatnonzero(sample.loss_mask):
        likeliest = np.argsort(-logits[at - 1])[: keep + at % 3]
        kept = np.union1d(likeliest, sample.tokens[at])
        chosen = logits[at - 1][kept]
        logprobs[at] = logits[at - 1][sample.tokens[at]] - np.log(np.exp(chosen).sum())
        ids.append(kept)
        counts.append(len(kept))
    fields = {name: getattr(sample, name) for name in sample.__struct_fields__}
    return Sample(
        **fields
        | {
            "logprobs": logprobs.astype(np.float32),
            "kept_ids": np.concatenate(ids).astype(np.int32),
            "kept_counts": np.array(counts, np.int32),
        }
    )


def test_the_vote_tells_what_the_step_was_made_of(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    groups: Sequence[list[Sample]] = [a_group(1, version=0), a_group(2, version=0, truncated=True)]
    bench.commit(a_plan(1, [a_group(3)]))
    bench.commit(a_plan(2, [a_group(4)]))
    metrics = bench.vote(a_plan(3, groups, oldest_allowed_version=1)).metrics
    sampled = float(sum(sample.loss_mask.sum() for group in groups for sample in group))
    assert metrics["reward/mean"] == 0.5
    assert metrics["tool_calls/mean"] == 1.0
    assert metrics["is_truncated/mean"] == 0.5
    assert metrics["lag/mean"] == metrics["lag/max"] == 2.0
    assert metrics["masked_tokens/lag_2"] == metrics["tokens/masked"] == sampled
    assert metrics["tokens/trained"] == 0.0
    assert metrics["time/wait_for_plan_s"] > 0
    assert metrics["time/wait_for_slot_s"] > 0
    assert metrics["time/compute_s"] > 0


def test_the_vote_says_nothing_of_tools_that_no_environment_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert "tool_calls/mean" not in bench.vote(a_plan(1, [a_group(1, tool_calls=None)])).metrics


def test_a_mean_of_tool_calls_is_of_the_episodes_that_tell_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    group = [*a_group(1, members=3, tool_calls=None), a_sample(7, tool_calls=3.0)]
    assert bench.vote(a_plan(1, [group])).metrics["tool_calls/mean"] == 3.0


def test_each_named_part_of_a_reward_is_a_metric(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    metrics = bench.vote(a_plan(1, [a_group(1, reward_parts={"right": 1.0, "brief": 0.25})])).metrics
    assert (metrics["reward/right/mean"], metrics["reward/brief/mean"]) == (1.0, 0.25)


def test_each_wait_is_told_apart_from_computing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan, frames = steps(1)[0]
    bench.now += 100
    bench.stage.order(plan, frames)
    bench.now += 30
    bench.stage.order(Grant(grant=1), ())
    bench.now += 7
    bench.work()
    bench.now += 500
    bench.stage.order(StepCommitted(step=1), ())
    bench.work()
    voted, saved = bench.link.messages(Voted)[0].metrics, bench.link.messages(CheckpointSaved)[0].metrics
    assert 100 <= voted["time/wait_for_plan_s"] < 102
    assert 30 <= voted["time/wait_for_slot_s"] < 32
    assert 7 <= voted["time/compute_s"] < 9
    assert 500 <= saved["time/wait_for_commit_s"] < 502
    assert saved["time/apply_s"] < 2
    assert bench.stage.stats()["waited_s"] >= 630


def test_a_trainer_that_could_not_start_can_still_be_closed(tmp_path: Path) -> None:
    stage = ActorTrain()
    with pytest.raises(CheckpointError, match="config.json"):
        stage.start(a_welcome(a_config(tmp_path / "nowhere"), tmp_path), FakeLink(str(tmp_path)))
    stage.close()


def test_a_trainer_says_what_it_waits_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.stage.waiting() == "broker: plan of step 1"
    plan, frames = steps(1)[0]
    bench.stage.order(plan, frames)
    assert "slot" in bench.stage.waiting()
    bench.stage.order(Grant(grant=1), ())
    assert bench.stage.waiting() == ""
    bench.work()
    assert "commit of step 1" in bench.stage.waiting()


def test_nothing_that_a_trainer_says_acknowledges_a_lease(tmp_path: Path) -> None:
    """Samples come with the plan: the step's commit ends their leases, not the trainer."""
    bench = Bench(tmp_path)
    bench.commit(steps(1)[0])
    assert all(isinstance(each, CommitSeen) and not each.acks for each in bench.link.commits)


def test_the_learning_rate_falls_to_its_share_at_the_last_step(tmp_path: Path) -> None:
    model = a_starting_model(tmp_path / "model")
    settings = train_settings(a_config(model, schedule={"steps": 5}, algorithm={"learning_rate": 1e-3, "learning_rate_end": 0.2}))
    assert [settings.learning_rate_at(step) for step in (1, 3, 5)] == pytest.approx([1e-3, 6e-4, 2e-4])


def test_a_run_directory_that_is_not_on_this_machine_is_named_with_what_to_do(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(ConfigError, match="is not on this machine.*run actor-train beside the broker"):
        ActorTrain().start(a_welcome(a_config(tmp_path), elsewhere), FakeLink(str(elsewhere)))
    assert not elsewhere.exists()
