"""Supervised learning of demonstrations from fresh weights to a Hugging Face directory.

Promises the same weights for the same seed, steps and torch build (one compute thread), and a directory that appears
whole or not at all. Says how far it is through `progress`; draws no bar itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from stages.model.checkpoint import save_decoder
from stages.model.config import DecoderConfig
from stages.model.decoder import Decoder
from stages.model.errors import CheckpointError
from stages.model.logprobs import token_logprobs
from tools.warm_start.batches import Batch, by_length
from tools.warm_start.demonstrations import DemonstrationLaw, demonstrate
from tools.warm_start.quality import Quality, quality
from tools.warm_start.tokenizer import EOS, IDS, PAD, VOCABULARY, write_tokenizer

BATCH = 48
"""Demonstrations a step."""
LEARNING_RATE, LAST_LEARNING_RATE, WARM_UP_STEPS = 2e-3, 1e-4, 50
"""Rises over the first steps, then falls linearly to the last; sharp copying needs the low end."""
BETAS = (0.9, 0.98)
GRADIENT_CLIP = 1.0
SHIPPED_SEED, SHIPPED_STEPS = 0, 3000
"""What `compose/models/calculator` was made with."""

Progress = Callable[[int, float], None]
"""Told (steps done, smoothed loss in nats a token) after each step."""


@dataclass(frozen=True)
class WarmStartReport:
    """What a warm start came to. `loss`: nats a learnt token, smoothed over about 50 steps; `seconds`: wall time."""

    output: Path
    steps: int
    loss: float
    seconds: float
    quality: Quality


def calculator_config() -> DecoderConfig:
    """The quickstart's decoder: Qwen3, 242 thousand parameters, about 1 MB in float32."""
    return DecoderConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rope_theta=100.0,  # episodes are short: wavelengths up to a few hundred characters tell all their places apart
        tie_word_embeddings=True,
        initializer_range=0.04,
        eos_token_id=IDS[EOS],
        pad_token_id=IDS[PAD],
    )


def warm_start(
    output: Path,
    seed: int = SHIPPED_SEED,
    steps: int = SHIPPED_STEPS,
    progress: Progress | None = None,
    replace: bool = False,
) -> WarmStartReport:
    """Trains and writes `output`. Raises CheckpointError where it exists and `replace` is not set (before training)."""
    _refuse_to_overwrite(output, replace)
    began = time.monotonic()
    decoder = Decoder(calculator_config()).initialise(seed)
    loss = learn(decoder, seed, steps, progress)
    save(decoder, output, replace)
    return WarmStartReport(output, steps, loss, time.monotonic() - began, quality(decoder))


def learn(decoder: Decoder, seed: int, steps: int, progress: Progress | None = None) -> float:
    """`steps` optimizer steps on fresh demonstrations; gives the smoothed loss."""
    rng, law = Random(f"warm start {seed}"), DemonstrationLaw()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
    smoothed = 0.0
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        loss = _step(decoder, optimizer, by_length([demonstrate(rng, law) for _ in range(BATCH)]))
        smoothed += (loss - smoothed) * max(1 / (step + 1), 0.02)
        if progress is not None:
            progress(step + 1, smoothed)
    return smoothed


def learning_rate(step: int, steps: int) -> float:
    """The rate of a step counted from 0."""
    falling = LEARNING_RATE + (LAST_LEARNING_RATE - LEARNING_RATE) * step / steps
    return falling * min(1.0, (step + 1) / WARM_UP_STEPS)


def save(decoder: Decoder, output: Path, replace: bool) -> None:
    """The weights, their config and the tokenizer as one directory."""
    with tempfile.TemporaryDirectory() as tokenizer:
        write_tokenizer(Path(tokenizer))
        save_decoder(decoder, output, tokenizer_from=tokenizer, replace=replace)


def _step(decoder: Decoder, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> float:
    """One optimizer step over all batches together; the mean loss of their learnt tokens."""
    learnt = sum(int(batch.learnt.sum()) for batch in batches)
    optimizer.zero_grad()
    total = 0.0
    for batch in batches:
        loss = -token_logprobs(decoder, batch.tokens, batch.lengths, wanted=batch.learnt).sum() / learnt
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), GRADIENT_CLIP)
    optimizer.step()
    return total


def _refuse_to_overwrite(output: Path, replace: bool) -> None:
    if output.exists() and not replace:
        raise CheckpointError(f"{output} exists already; remove it, choose another path, or ask to replace it")
