"""The loss against independent computations."""

import math

import numpy as np
import pytest
import torch

from stages.actor_train.loss import LossSettings, TokenBatch, kl_to_reference, step_loss, token_losses

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28, kl_coefficient=0.03)


def a_batch(seed: int, tokens: int = 400, spread: float = 0.4) -> TokenBatch:
    """Float64; ratios on both sides of both clips."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(tokens, generator=generator, dtype=torch.float64)

    behaviour = -2.0 + normal(0.5)
    return TokenBatch(
        logprobs=(behaviour + normal(spread)).requires_grad_(True),
        behaviour=behaviour,
        reference=behaviour + normal(spread),
        advantages=normal(1.0),
    )


def plain_loss(batch: TokenBatch, denominator: int) -> tuple[float, list[float]]:
    """Loss and gradient in plain Python, written from the formulas: clipped surrogate, k3 value, k2 gradient."""
    assert batch.reference is not None
    loss, gradient = 0.0, []
    columns = (batch.logprobs, batch.behaviour, batch.reference, batch.advantages)
    for new, old, reference, advantage in zip(*(column.tolist() for column in columns), strict=True):
        ratio, distance = math.exp(new - old), new - reference
        clipped = min(max(ratio, 0.8), 1.28)
        surrogate = min(ratio * advantage, clipped * advantage)
        kl = math.exp(-distance) + distance - 1
        loss += -surrogate + 0.03 * kl
        inside = ratio * advantage <= clipped * advantage
        gradient.append(((-ratio * advantage if inside else 0.0) + 0.03 * distance) / denominator)
    return loss / denominator, gradient


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_and_its_gradient_are_those_of_the_formulas(seed: int) -> None:
    batch = a_batch(seed)
    loss = step_loss(token_losses(batch, SETTINGS), SETTINGS, 500)
    loss.backward()
    expected, gradient = plain_loss(batch, 500)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert batch.logprobs.grad is not None
    np.testing.assert_allclose(batch.logprobs.grad.numpy(), gradient, rtol=1e-10, atol=1e-15)


def test_on_policy_the_ratio_is_one_and_the_gradient_that_of_reinforce() -> None:
    fresh = a_batch(4, spread=0.0)
    losses = token_losses(fresh, LossSettings(clip_low=0.2, clip_high=0.28, kl_coefficient=0.0))
    losses.policy.sum().backward()
    assert fresh.logprobs.grad is not None
    torch.testing.assert_close(fresh.logprobs.grad, -fresh.advantages, rtol=1e-12, atol=1e-12)
    assert not losses.clipped_low.any()
    assert not losses.clipped_high.any()


def test_a_clipped_token_has_no_gradient_and_only_a_clipped_token() -> None:
    batch = a_batch(5)
    losses = token_losses(batch, SETTINGS)
    losses.policy.sum().backward()
    assert batch.logprobs.grad is not None
    clipped = losses.clipped_low | losses.clipped_high
    assert 0 < int(clipped.sum()) < len(clipped)
    assert torch.equal(batch.logprobs.grad == 0, clipped)


def test_kl_is_never_negative_and_zero_only_at_the_reference() -> None:
    batch = a_batch(6)
    assert batch.reference is not None
    values = kl_to_reference(batch.logprobs, batch.reference)
    assert bool((values >= 0).all())
    assert torch.count_nonzero(kl_to_reference(batch.reference, batch.reference)) == 0


def test_the_gradient_of_kl_is_on_average_that_of_the_reverse_divergence() -> None:
    """Over all tokens of a small vocabulary, weighted by the policy, it is exactly d KL(pi || rho) / d logits."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), 0)
    policy = torch.log_softmax(logits, 0)
    estimate = (policy.detach().exp() * kl_to_reference(policy, reference)).sum()
    (ours,) = torch.autograd.grad(estimate, logits, retain_graph=True)
    (true,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits)
    torch.testing.assert_close(ours, true, rtol=1e-10, atol=1e-12)


def test_without_a_reference_there_is_no_kl() -> None:
    assert torch.count_nonzero(kl_to_reference(torch.randn(5), None)) == 0


def test_absurd_log_ratios_stay_finite() -> None:
    far = torch.tensor([-300.0, 0.0, -torch.inf], requires_grad=True)
    batch = TokenBatch(
        logprobs=far,
        behaviour=torch.tensor([0.0, -300.0, 0.0]),
        reference=torch.tensor([0.0, -300.0, 0.0]),
        advantages=torch.tensor([1.0, -1.0, 1.0]),
    )
    loss = step_loss(token_losses(batch, SETTINGS), SETTINGS, 3)
    loss.backward()
    assert far.grad is not None
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(far.grad).all())


def test_splitting_a_step_changes_neither_loss_nor_gradient() -> None:
    batch = a_batch(8)
    whole = step_loss(token_losses(batch, SETTINGS), SETTINGS, 400)
    (expected,) = torch.autograd.grad(whole, batch.logprobs)
    parts = []
    for at in range(0, 400, 37):
        cut = slice(at, at + 37)
        assert batch.reference is not None
        part = TokenBatch(
            logprobs=batch.logprobs[cut],
            behaviour=batch.behaviour[cut],
            reference=batch.reference[cut],
            advantages=batch.advantages[cut],
        )
        parts.append(step_loss(token_losses(part, SETTINGS), SETTINGS, 400))
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=0.0)
    (found,) = torch.autograd.grad(sum(parts), batch.logprobs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
