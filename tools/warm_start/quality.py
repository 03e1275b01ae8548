"""How good a checkpoint is at the calculator task, without playing it.

A path through a problem has an exact probability under sampling at temperature 1: the product of the probabilities of
its sampled tokens, because what the tool answers is known. So the accuracy that sampling would give is summed over the
two paths that lead to the right answer, the tool's and the blurt, from two forward passes. Other right paths (a call
too many, a mended mistake) are rare and left out: the figure errs low, by less than a point on the shipped checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from stages.env.arithmetic import ProblemLaw, draw_expression, value
from stages.model.decoder import Decoder
from stages.model.logprobs import token_logprobs
from tools.warm_start.batches import padded
from tools.warm_start.demonstrations import Demonstration, blurted, with_tool

CHUNK = 100
"""Problems a forward pass; bounds the memory of the longest ones."""


@dataclass(frozen=True)
class Quality:
    """All are probabilities at temperature 1, averaged over held-out problems."""

    accuracy: float
    """A problem is answered right, by the tool or without."""
    tool_share: float
    """The first token begins a call."""
    tool_accuracy: float
    """Given that, every call and the answer are as they should be: how well copying is learnt."""
    blurt_accuracy: float
    """Given that the first token begins an answer, it is right."""


def quality(decoder: Decoder, seed: int = 0, problems: int = 500, law: ProblemLaw | None = None) -> Quality:
    """Measures a decoder on held-out problems; the same for the same weights and arguments."""
    rng = Random(f"quality {seed}")
    expressions = [draw_expression(rng, law or ProblemLaw(), "eval") for _ in range(problems)]
    tool_path, tool_first = _probabilities(decoder, [with_tool(expression) for expression in expressions])
    blurt_path, blurt_first = _probabilities(decoder, [blurted(each, value(each)) for each in expressions])
    return Quality(
        accuracy=float((tool_path + blurt_path).mean()),
        tool_share=float(tool_first.mean()),
        tool_accuracy=float(tool_path.sum() / tool_first.sum()),
        blurt_accuracy=float(blurt_path.sum() / blurt_first.sum()),
    )


def _probabilities(decoder: Decoder, paths: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """Probabilities, float32 [paths]: of every learnt token of a path together, and of the first one alone."""
    whole, first = [], []
    with torch.inference_mode():
        for start in range(0, len(paths), CHUNK):
            batch = padded(paths[start : start + CHUNK])
            logprobs = token_logprobs(decoder, batch.tokens, batch.lengths, wanted=batch.learnt)
            whole.append(logprobs.sum(1).exp())
            opening = batch.learnt.int().argmax(1, keepdim=True)
            first.append(logprobs.gather(1, opening)[:, 0].exp())
    return torch.cat(whole), torch.cat(first)
