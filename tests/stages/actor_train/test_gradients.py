"""What reaches the weights, through the real decoder: which tokens, on which scale, however a step is split."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from schemas.records import Sample, VersionSpan
from stages.actor_train.batching import micro_batch, micro_batches, training_sequences
from stages.actor_train.settings import train_settings
from stages.actor_train.worker import Trainer
from stages.model.checkpoint import load_decoder
from stages.model.logprobs import token_logprobs
from tests.stages.training_builders import a_config, a_group, a_plan, a_sample, a_starting_model


def a_trainer(path: Path, dtype: torch.dtype = torch.float64) -> Trainer:
    model = a_starting_model(path / "model")
    return Trainer(load_decoder(model, dtype), train_settings(a_config(model)))


def gradients(
    trainer: Trainer, groups: list[list[Sample]], micro_batch_tokens: int = 10_000, step: int = 1, **changes: object
) -> dict[str, torch.Tensor]:
    plan, _ = a_plan(step, groups, **changes)
    samples = [sample for group in groups for sample in group]
    trainer.drop()
    for batch in micro_batches(training_sequences(plan, samples, True), micro_batch_tokens):
        trainer.accumulate(micro_batch(batch, "cpu"), plan.token_denominator)
    named = trainer.decoder.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named}


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], relative: float) -> None:
    assert any(bool(gradient.any()) for gradient in expected.values())
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=0.0, atol=relative * scale, msg=lambda text, n=name: f"{n}: {text}")


def oracle(trainer: Trainer, groups: list[list[Sample]]) -> dict[str, torch.Tensor]:
    """One sequence at a time, from the formulas; on-policy start, one denominator."""
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        rewards = np.array([sample.reward for sample in group])
        for sample in group:
            tokens = torch.from_numpy(sample.tokens.astype(np.int64))[None]
            new = token_logprobs(trainer.decoder, tokens, torch.tensor([len(sample.tokens)]))[0].double()
            mask = torch.from_numpy(sample.loss_mask[1:].astype(bool))
            old, ref = (torch.from_numpy(a[1:].astype(np.float64)) for a in (sample.logprobs, sample.ref_logprobs))
            advantage = (sample.reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            ratio = (new - old).exp()
            policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            total = total + ((policy + 0.001 * (new - ref).square() / 2) * mask).sum()
    denominator = sum(int(sample.loss_mask.sum()) for group in groups for sample in group)
    parameters = dict(trainer.decoder.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(total / denominator, list(parameters.values())), strict=True))


def test_the_gradient_is_that_of_the_formulas_one_sequence_at_a_time(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path)
    groups = [a_group(seed) for seed in range(3)]
    assert_close(gradients(trainer, groups, 60), oracle(trainer, groups), 1e-6)


@pytest.mark.parametrize("micro_batch_tokens", [1, 30, 64, 200])
def test_splitting_into_micro_batches_does_not_change_the_gradient(tmp_path: Path, micro_batch_tokens: int) -> None:
    trainer = a_trainer(tmp_path)
    groups = [a_group(seed) for seed in range(3)]
    assert_close(gradients(trainer, groups, micro_batch_tokens), gradients(trainer, groups), 1e-6)


def test_prompts_and_observations_never_contribute(tmp_path: Path) -> None:
    """Autograd from the loss to the log-prob of every token: what the policy did not sample gets exactly zero."""
    trainer = a_trainer(tmp_path)
    groups = [a_group(1), a_group(2)]
    plan, _ = a_plan(1, groups)
    samples = [sample for group in groups for sample in group]
    sequences = training_sequences(plan, samples, True)
    (together,) = micro_batches(sequences, 10_000)
    batch = micro_batch(together, "cpu")
    tapped: list[torch.Tensor] = []

    def tap(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], hidden: torch.Tensor) -> torch.Tensor:
        hidden.retain_grad()
        tapped.append(hidden)
        return hidden

    handle = trainer.decoder.model.register_forward_hook(tap)
    trainer.accumulate(batch, plan.token_denominator)
    handle.remove()
    touched = tapped[0].grad.abs().sum(-1)[:, :-1] > 0
    sampled = torch.zeros_like(touched)
    for row, sequence in enumerate(together):
        mask = torch.from_numpy(sequence.segment.sampled[1:].copy())
        sampled[row, : len(mask)] = mask
    assert bool(touched.any())
    assert torch.equal(touched, sampled)


def test_what_an_observation_had_for_a_log_prob_is_never_read(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path)
    groups = [a_group(3)]
    noisy = [[_with_noise_outside_the_mask(sample) for sample in group] for group in groups]
    assert_close(gradients(trainer, noisy), gradients(trainer, groups), 0.0)


def _with_noise_outside_the_mask(sample: Sample) -> Sample:
    noise = np.where(sample.loss_mask, 0.0, -7.0).astype(np.float32)
    fields = {name: getattr(sample, name) for name in sample.__struct_fields__}
    return Sample(**fields | {"logprobs": sample.logprobs + noise, "ref_logprobs": sample.ref_logprobs + noise})


def test_masking_old_tokens_does_not_scale_up_the_rest(tmp_path: Path) -> None:
    """Half of a group is too old: what is left has the same gradient as if the old half had advantage and KL zero."""
    trainer = a_trainer(tmp_path)
    old = a_sample(1, reward=1.0, version=0)
    new = a_sample(2, reward=0.0, version=5)
    masked = gradients(trainer, [[old, new]], step=6, oldest_allowed_version=4)
    alone = gradients(
        trainer, [[new]], step=6, oldest_allowed_version=4,
        rewards=a_plan(6, [[old, new]])[0].rewards, token_denominator=int(old.loss_mask.sum() + new.loss_mask.sum()),
    )  # fmt: skip
    assert_close(masked, alone, 1e-12)


def test_an_episode_that_is_partly_too_old_is_trained_on_the_rest(tmp_path: Path) -> None:
    """Under `keep` one episode spans versions: its old turn stays context, its new turn is trained."""
    trainer = a_trainer(tmp_path)
    mixed = a_sample(1, reward=1.0)
    spans = (VersionSpan(4, 8, 2), VersionSpan(10, len(mixed.tokens), 5))
    mixed = msgspec.structs.replace(mixed, sample_spans=spans)
    new_turn_alone = mixed.loss_mask.copy()
    new_turn_alone[4:8] = 0
    other = a_sample(2, reward=0.0, version=5)
    denominator = int(mixed.loss_mask.sum() + other.loss_mask.sum())
    masked = gradients(trainer, [[mixed, other]], step=6, oldest_allowed_version=4)
    by_hand = msgspec.structs.replace(mixed, loss_mask=new_turn_alone)
    expected = gradients(
        trainer, [[by_hand, other]], step=6, oldest_allowed_version=0, token_denominator=denominator
    )  # fmt: skip
    assert_close(masked, expected, 0.0)


def test_a_step_whose_every_token_is_too_old_has_no_gradient(tmp_path: Path) -> None:
    found = gradients(a_trainer(tmp_path), [a_group(1, version=0)], step=9, oldest_allowed_version=6)
    assert not any(bool(gradient.any()) for gradient in found.values())


def test_segments_are_sequences_of_their_own(tmp_path: Path) -> None:
    """The second segment must not see the first: its gradient is that of a sample made of it alone."""
    trainer = a_trainer(tmp_path)
    whole = a_sample(5, length=20, reward=1.0, segments=((0, 9), (9, 20)))
    other = a_sample(6, reward=0.0)
    plan, _ = a_plan(1, [[whole, other]])
    sequences = training_sequences(plan, [whole, other], True)
    assert [len(s.segment.tokens) for s in sequences[:2]] == [9, 11]
    second = sequences[1]
    alone = micro_batch([second], "cpu")
    trainer.drop()
    trainer.accumulate(alone, 10)
    cut = a_sample(5, length=20)
    tail = Sample(
        reward=1.0, reward_parts={}, segments=((0, 11),), sample_spans=(VersionSpan(1, 11, 0),), kv_spans=(),
        tokens=cut.tokens[9:], loss_mask=cut.loss_mask[9:], logprobs=cut.logprobs[9:], ref_logprobs=cut.ref_logprobs[9:],
        kept_ids=cut.kept_ids, kept_counts=cut.kept_counts,
    )  # fmt: skip
    first = {name: p.grad.clone() for name, p in trainer.decoder.named_parameters() if p.grad is not None}
    plan, _ = a_plan(1, [[tail, other]])
    trainer.drop()
    trainer.accumulate(micro_batch([training_sequences(plan, [tail, other], True)[0]], "cpu"), 10)
    assert_close({name: p.grad for name, p in trainer.decoder.named_parameters() if p.grad is not None}, first, 0.0)
