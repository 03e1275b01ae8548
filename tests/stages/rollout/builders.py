"""Builders of engines, turns and whole plays of sessions for the rollout tests. Needs no transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from stages.model.config import DecoderConfig
from stages.model.decoder import Decoder
from stages.model.logprobs import next_logprobs, pad_kept
from stages.rollout.engine import Engine, SessionKey, TurnRequest, TurnResult
from stages.rollout.torch_engine import EngineLimits, TorchEngine

VOCABULARY = 40


def a_decoder(seed: int = 0) -> Decoder:
    """Weights wide enough that distributions are far from uniform."""
    config = DecoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return Decoder(config).initialise(seed).eval()


def an_engine(decoder: Decoder | None = None, version: int = 1, **limits: int) -> TorchEngine:
    decoder = decoder or a_decoder()
    return TorchEngine(decoder.config, version, decoder.state_dict(), EngineLimits(**limits))


def some_tokens(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).astype(np.int32)


def a_turn(turn_id: int = 1, session: SessionKey | None = None, appended: Any = (1, 2, 3), **changes: Any) -> TurnRequest:
    fields: dict[str, Any] = {"held": 0, "seed": 100 + turn_id, "max_new_tokens": 8}
    tokens = np.asarray(appended, dtype=np.int32)
    return TurnRequest(turn_id=turn_id, session=session or (turn_id, 1), appended=tokens, **(fields | changes))


def play(
    engine: Engine, requests: Iterable[TurnRequest] = (), before_step: Callable[[int], None] = lambda step: None
) -> dict[int, TurnResult]:
    """Submits, then steps until there is no work. Results by turn id."""
    for request in requests:
        engine.submit(request)
    results: dict[int, TurnResult] = {}
    steps = 0
    while engine.has_work():
        before_step(steps)
        for result in engine.step():
            results[result.turn_id] = result
        steps += 1
    return results


def full_logprobs(decoder: Decoder, context: np.ndarray, result: TurnResult, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of a turn's tokens by one forward over the whole context: what a trainer would recompute."""
    tokens = torch.from_numpy(np.concatenate((context, result.tokens)).astype(np.int64))
    start = len(context) - 1
    with torch.no_grad():
        logits = decoder(tokens[None])[0, start:-1]
    kept = None
    if result.kept_counts.size:
        columns = np.arange(len(result.tokens))
        kept = pad_kept([result.kept_ids], [result.kept_counts], [columns], len(columns))[0]
    return next_logprobs(logits, tokens[start + 1 :], torch.full((len(logits),), temperature), kept)[0].numpy()
