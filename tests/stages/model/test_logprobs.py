from __future__ import annotations

import numpy as np
import torch

from stages.model.logprobs import NO_ID, next_logprobs, pad_kept, token_logprobs, token_logprobs_and_entropy
from tests.stages.model.builders import a_decoder, a_padded_batch


def plain_logprobs(tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = a_decoder()(tokens[:, :-1]) / temperature
    return torch.log_softmax(logits, -1).gather(2, tokens[:, 1:, None])[..., 0]


def test_logprobs_are_those_of_the_next_token_and_zero_past_the_end() -> None:
    tokens, lengths = a_padded_batch(seed=1)
    real = torch.arange(tokens.shape[1] - 1)[None, :] < (lengths - 1)[:, None]
    found = token_logprobs(a_decoder(), tokens, lengths, temperature=0.7)
    assert found.dtype == torch.float32
    assert torch.allclose(found[real], plain_logprobs(tokens, 0.7)[real], atol=1e-5)
    assert (found[~real] == 0).all()


def test_only_wanted_positions_are_computed() -> None:
    tokens, lengths = a_padded_batch(seed=2)
    wanted = torch.zeros(tokens.shape[0], tokens.shape[1] - 1, dtype=torch.bool)
    wanted[0, 3:6] = True
    everywhere = token_logprobs(a_decoder(), tokens, lengths)
    found = token_logprobs(a_decoder(), tokens, lengths, wanted=wanted)
    assert torch.allclose(found[wanted], everywhere[wanted], atol=1e-6)
    assert (found[~wanted] == 0).all()


def test_each_sequence_may_have_its_own_temperature_and_greedy_counts_as_one() -> None:
    tokens, lengths = a_padded_batch(seed=3, sequences=3)
    found = token_logprobs(a_decoder(), tokens, lengths, torch.tensor([0.5, 1.0, 0.0]))
    for row, temperature in enumerate((0.5, 1.0, 1.0)):
        alone = token_logprobs(a_decoder(), tokens, lengths, temperature)
        assert torch.allclose(found[row], alone[row], atol=1e-6)


def test_kept_ids_restrict_the_distribution_and_an_empty_list_does_not() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    kept = torch.tensor([[3, 1], [NO_ID, NO_ID]])
    logprobs, entropy = next_logprobs(logits, torch.tensor([3, 3]), torch.ones(2), kept)
    two = torch.log_softmax(torch.tensor([2.0, 4.0]), 0)
    four = torch.log_softmax(logits[0], 0)
    assert torch.allclose(logprobs, torch.stack((two[1], four[3])))
    assert torch.allclose(entropy, torch.stack((-(two.exp() * two).sum(), -(four.exp() * four).sum())))


def test_a_token_outside_its_kept_ids_is_impossible() -> None:
    logprobs, _ = next_logprobs(torch.zeros(1, 4), torch.tensor([2]), torch.ones(1), torch.tensor([[0, 1]]))
    assert logprobs.item() == -torch.inf


def test_ragged_kept_ids_land_at_their_positions() -> None:
    ids = [np.array([5, 6, 7], np.int32), np.array([], np.int32)]
    counts = [np.array([2, 1], np.int32), np.array([], np.int32)]
    starts = [np.array([1, 3]), np.array([], np.int64)]
    padded = pad_kept(ids, counts, starts, width=4)
    assert padded.shape == (2, 4, 2)
    assert padded[0].tolist() == [[-1, -1], [5, 6], [-1, -1], [7, -1]]
    assert (padded[1] == NO_ID).all()


def test_gradient_flows_through_kept_logprobs_and_not_through_entropy() -> None:
    decoder = a_decoder()
    tokens, lengths = a_padded_batch(seed=4, sequences=2)
    kept = torch.stack((tokens[:, 1:], (tokens[:, 1:] + 1) % 40), dim=-1)
    logprobs, entropy = token_logprobs_and_entropy(decoder, tokens, lengths, 0.8, kept)
    assert not entropy.requires_grad
    torch.autograd.backward(logprobs.sum())
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in decoder.parameters())
