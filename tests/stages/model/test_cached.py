from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.model.cached import CachedDecoder, PackedBatch
from stages.model.checkpoint import tensor_digests
from stages.model.decoder import Decoder
from stages.model.errors import TensorMismatchError
from tests.stages.model.builders import a_decoder, both_models

CAPACITY = 24


def a_cached_decoder(decoder: Decoder) -> CachedDecoder:
    return CachedDecoder(decoder.config, decoder.state_dict(), max_positions=CAPACITY)


def a_batch(contexts: list[list[int]], filled: list[int], steps: int, chunks: list[int]) -> tuple[PackedBatch, torch.Tensor]:
    """Takes the next tokens of each context; `wanted` are all packed tokens."""
    sizes = [1] * steps + chunks
    pairs = [(context[at], at) for context, start, size in zip(contexts, filled, sizes, strict=True) for at in range(start, start + size)]
    tokens, positions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    return PackedBatch(tokens, positions, steps, chunks), torch.arange(len(pairs))


@pytest.mark.parametrize("variant", [{}, {"tie_word_embeddings": False}, {"attention_bias": True}])
def test_steps_and_chunks_equal_transformers_whole_forward(tmp_path: Path, variant: dict[str, Any]) -> None:
    theirs, ours = both_models(tmp_path, **variant)
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    choice = random.Random(seed)
    cached = a_cached_decoder(ours)
    contexts = [[choice.randrange(40) for _ in range(CAPACITY)] for _ in range(5)]
    with torch.no_grad():
        whole = theirs(torch.tensor(contexts)).logits
    cache, filled = cached.new_cache(5, CAPACITY), [0] * 5
    while min(filled) < CAPACITY - 4:
        # The rows that step must come first: here a random number of them, whatever they hold.
        steps = choice.randrange(6)
        chunks = [choice.randrange(1, 5) for _ in range(5 - steps)]
        if any(f + size > CAPACITY for f, size in zip(filled, [1] * steps + chunks, strict=True)):
            break
        batch, wanted = a_batch(contexts, filled, steps, chunks)
        found = cached.logits(batch, cache, wanted)
        rows = [row for row, size in enumerate([1] * steps + chunks) for _ in range(size)]
        assert torch.allclose(found, whole[rows, batch.positions], atol=1e-4, rtol=0)
        filled = [f + size for f, size in zip(filled, [1] * steps + chunks, strict=True)]
    assert sum(filled) > 5


def test_only_the_wanted_logits_come_back() -> None:
    cached = a_cached_decoder(a_decoder())
    batch, wanted = a_batch([[1, 2, 3, 4], [5, 6, 7, 8]], [0, 0], 0, [4, 2])
    everything = cached.logits(batch, cached.new_cache(2, CAPACITY), wanted)
    some = cached.logits(batch, cached.new_cache(2, CAPACITY), torch.tensor([3, 5]))
    assert torch.allclose(some, everything[[3, 5]], atol=1e-6)


def test_new_weights_take_effect_and_are_a_copy() -> None:
    first, second = a_decoder(seed=1), a_decoder(seed=2)
    cached = a_cached_decoder(first)
    batch, wanted = a_batch([[1, 2, 3]], [0], 0, [3])
    cached.install(second.state_dict())
    with torch.no_grad():
        expected = second(batch.tokens[None])[0]
        for parameter in second.parameters():
            parameter.zero_()
    assert torch.allclose(cached.logits(batch, cached.new_cache(1, CAPACITY), wanted), expected, atol=1e-5)


def test_weights_that_do_not_fit_are_refused_and_change_nothing() -> None:
    decoder = a_decoder()
    cached = a_cached_decoder(decoder)
    batch, wanted = a_batch([[1, 2, 3]], [0], 0, [3])
    before = cached.logits(batch, cached.new_cache(1, CAPACITY), wanted)
    wrong = a_decoder(seed=9).state_dict() | {"model.norm.weight": torch.zeros(3)}
    with pytest.raises(TensorMismatchError, match=r"model\.norm\.weight"):
        cached.install(wrong)
    assert torch.equal(cached.logits(batch, cached.new_cache(1, CAPACITY), wanted), before)


@pytest.mark.parametrize("variant", [{}, {"tie_word_embeddings": False, "attention_bias": True}])
def test_the_tensors_in_use_are_bit_for_bit_those_installed(variant: dict[str, Any]) -> None:
    decoder = a_decoder(**variant)
    assert tensor_digests(a_cached_decoder(decoder).tensors_in_use()) == tensor_digests(decoder.state_dict())
