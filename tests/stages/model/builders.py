"""Builders of tiny models, ours and transformers', with equal weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from stages.model.checkpoint import load_decoder
from stages.model.config import DecoderConfig
from stages.model.decoder import Decoder


def a_config(**changes: object) -> DecoderConfig:
    """Two layers, four query heads over two key heads, head_dim unlike hidden_size / heads."""
    sizes: dict[str, object] = {
        "vocab_size": 40,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rope_theta": 10_000.0,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
    }
    return DecoderConfig(**(sizes | changes))  # type: ignore[arg-type]


def a_decoder(seed: int = 0, **changes: object) -> Decoder:
    """Weights wide enough (0.2) that distributions are far from uniform."""
    decoder = Decoder(a_config(**changes)).initialise(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "norm" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return decoder


def a_transformers_model(seed: int = 0, **changes: object) -> PreTrainedModel:
    config = a_config(**changes)
    torch.manual_seed(seed)
    model: PreTrainedModel = Qwen3ForCausalLM(Qwen3Config(**config.to_hugging_face("float32")))
    model.set_attn_implementation("eager")
    model.train(False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def both_models(path: Path, seed: int = 0, **changes: object) -> tuple[PreTrainedModel, Decoder]:
    """The same random weights as a transformers model and, through a directory it saved, as ours."""
    theirs = a_transformers_model(seed, **changes)
    theirs.save_pretrained(path)
    return theirs, load_decoder(path)


def transformers_reads(path: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    model.train(False)
    return model


def a_padded_batch(seed: int, sequences: int = 5, longest: int = 17, vocabulary: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [B, T] padded on the right with 0, and lengths int64 [B] from 2 to T."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (sequences,), generator=generator)
    lengths[0] = longest
    tokens = torch.randint(0, vocabulary, (sequences, longest), generator=generator)
    tokens[torch.arange(longest)[None, :] >= lengths[:, None]] = 0
    return tokens, lengths
