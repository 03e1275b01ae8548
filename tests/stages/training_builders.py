"""Builders of what the training stages read: a starting model on disk, its config, samples, plans, and a stage at work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from schemas.codec import Frame, encode_record, make_header
from schemas.config.pipeline import PipelineConfig
from schemas.header import Header
from schemas.messages import GroupRewards, Plan, Welcome
from schemas.records import Sample, VersionSpan
from stages.model.checkpoint import save_decoder
from stages.model.config import DecoderConfig
from stages.model.decoder import Decoder
from stages.model.logprobs import token_logprobs
from tests.stages.fake_link import PIPELINE

VOCABULARY = 24


def a_starting_model(path: Path, seed: int = 0) -> Path:
    """A one-layer decoder whose distributions are far from uniform."""
    config = DecoderConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip
    save_decoder(Decoder(config).initialise(seed), path)
    return path


def a_config(model: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A resolved config as the welcome carries it; `sections` are merged in, `stages` one level deeper."""
    stages: dict[str, Any] = {
        "env": {"environment": "stages.env.calculator:Calculator"},
        "reward": {"verifier": "stages.reward.exact_match:exact_match"},
    }
    given = dict(sections)
    stages |= given.pop("stages", {})
    raw = {"pipeline": {"name": PIPELINE}, "model": {"path": str(model)}, "stages": stages, **given}
    return PipelineConfig.model_validate(raw).model_dump(mode="json")


def a_welcome(config: dict[str, Any], run_directory: Path) -> Welcome:
    return Welcome(epoch=1, next_seq=1, config=config, run_directory=str(run_directory))


def a_sample(
    seed: int, decoder: Decoder | None = None, version: int = 0, reward: float = 1.0, length: int | None = None, **changes: Any
) -> Sample:
    """An episode of two turns with an observation between; with `decoder`, its log-probs are that decoder's."""
    rng = np.random.default_rng(seed)
    size = length or int(rng.integers(12, 24))
    tokens = rng.integers(1, VOCABULARY, size).astype(np.int32)
    mask = np.zeros(size, np.uint8)
    mask[4:8] = 1
    mask[10:] = 1
    logprobs = np.where(mask, rng.normal(-2.0, 0.5, size), 0.0).astype(np.float32)
    if decoder is not None:
        logprobs = scored(decoder, tokens, mask)
    fields: dict[str, Any] = {
        "reward": reward, "reward_parts": {"exact_match": reward}, "segments": ((0, size),),
        "sample_spans": (VersionSpan(4, 8, version), VersionSpan(10, size, version)),
        "kv_spans": (VersionSpan(0, size - 1, version),), "tool_calls": 1.0,
        "tokens": tokens, "loss_mask": mask, "logprobs": logprobs, "ref_logprobs": logprobs.copy(),
        "kept_ids": np.empty(0, np.int32), "kept_counts": np.empty(0, np.int32),
    }  # fmt: skip
    return Sample(**(fields | changes))


def scored(decoder: Decoder, tokens: np.ndarray, mask: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """float32 [T]: the decoder's log-probs of the masked tokens, one sequence alone."""
    with torch.no_grad():
        row = torch.from_numpy(tokens.astype(np.int64))[None]
        found = token_logprobs(decoder, row, torch.tensor([len(tokens)]), temperature)[0].numpy()
    return np.where(mask, np.concatenate(([0.0], found)), 0.0).astype(np.float32)


def a_group(seed: int, decoder: Decoder | None = None, members: int = 4, version: int = 0, **changes: Any) -> list[Sample]:
    """Members with mixed rewards."""
    return [a_sample(seed * 100 + member, decoder, version, reward=float(member % 2), **changes) for member in range(members)]


def a_plan(step: int, groups: Sequence[Sequence[Sample]], **changes: Any) -> tuple[Plan, list[Frame]]:
    """A plan over `groups` and the frames that follow it."""
    headers: list[Header] = []
    frames: list[Frame] = []
    for number, group in enumerate(groups):
        for member, sample in enumerate(group):
            own = encode_record(sample)
            ids = {"ticket": 10 * number + member, "group": number, "member": member, "attempt": 1, "reward": sample.reward}
            headers.append(make_header(sample, own, pipeline=PIPELINE, queue="samples", **ids))
            frames += own
    fields: dict[str, Any] = {
        "step": step, "lineage": 0, "oldest_allowed_version": max(0, step - 3), "samples": tuple(headers),
        "token_denominator": sum(int(sample.loss_mask.sum()) for group in groups for sample in group),
        "rewards": tuple(
            GroupRewards(group=number, rewards=tuple(sample.reward for sample in group)) for number, group in enumerate(groups)
        ),
    }  # fmt: skip
    return Plan(**(fields | changes)), frames
