from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.model.decoder import Decoder
from tests.stages.model.builders import a_config, a_decoder, a_padded_batch, both_models

VARIANTS: list[dict[str, Any]] = [
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": False},
    {"attention_bias": True, "tie_word_embeddings": False},
    {"num_key_value_heads": 4, "rope_theta": 1_000_000.0},
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_over_a_padded_batch(tmp_path: Path, variant: dict[str, Any]) -> None:
    theirs, ours = both_models(tmp_path, **variant)
    tokens, lengths = a_padded_batch(seed=1)
    mask = torch.arange(tokens.shape[1])[None, :] < lengths[:, None]
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=mask.long()).logits[mask]
        assert torch.allclose(ours(tokens)[mask], expected, atol=1e-4, rtol=0)
        assert torch.allclose(ours(tokens, mask), expected, atol=1e-4, rtol=0)


def test_gradients_equal_transformers(tmp_path: Path) -> None:
    theirs, ours = both_models(tmp_path)
    tokens, _ = a_padded_batch(seed=2)
    for logits in (theirs(input_ids=tokens).logits, ours(tokens)):
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        wanted = expected[name]
        assert parameter.grad is not None
        assert wanted is not None
        assert torch.allclose(parameter.grad, wanted, atol=1e-5), name


def test_padding_reaches_no_real_position() -> None:
    decoder = a_decoder()
    tokens, lengths = a_padded_batch(seed=3)
    real = torch.arange(tokens.shape[1])[None, :] < lengths[:, None]
    other = torch.where(real, tokens, 7)
    with torch.no_grad():
        assert torch.equal(decoder(tokens)[real], decoder(other)[real])


def test_a_tied_decoder_has_no_head_of_its_own() -> None:
    assert not any("lm_head" in name for name in Decoder(a_config()).state_dict())
    assert "lm_head.weight" in Decoder(a_config(tie_word_embeddings=False)).state_dict()


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = Decoder(a_config()).initialise(3).state_dict()
    torch.manual_seed(6)
    again, other = Decoder(a_config()).initialise(3).state_dict(), Decoder(a_config()).initialise(4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
