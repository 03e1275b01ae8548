"""The heavy thing of actor-train: a decoder, its gradients and AdamW.

Owns weights and optimizer state. Promises that gradients are added up over micro-batches and leave no trace when
dropped, and that `apply` is the only thing that changes a weight. Computes on one thread: two busy OpenMP threads
on two busy cores were measured 140 times slower than one. Knows no plan, no broker and no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.actor_train.batching import MicroBatch
from stages.actor_train.core.metrics import TokenSums
from stages.actor_train.loss import TokenBatch, TokenLosses, step_loss, token_losses
from stages.actor_train.settings import TrainSettings
from stages.model.decoder import Decoder
from stages.model.logprobs import token_logprobs_and_entropy


@dataclass(frozen=True)
class Gradient:
    """The step's gradient after clipping; `norm` is that before."""

    norm: float
    finite: bool


class Trainer:
    def __init__(self, decoder: Decoder, settings: TrainSettings) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(settings.seed)
        self.decoder = decoder
        self.settings = settings
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(decoder, settings.weight_decay), lr=settings.learning_rate, betas=settings.betas
        )

    def accumulate(self, batch: MicroBatch, token_denominator: int) -> TokenSums:
        """Forward, loss and backward of one micro-batch; its gradient is added to what is there."""
        logprobs, entropy = self._scores(batch)
        tokens = TokenBatch(logprobs=logprobs, behaviour=batch.behaviour, reference=batch.reference, advantages=batch.advantages)
        losses = token_losses(tokens, self.settings.loss)
        loss = step_loss(losses, self.settings.loss, token_denominator)
        loss.backward()
        return _sums(batch, losses, loss, logprobs.detach(), entropy)

    def _scores(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs (with gradient) and entropies [N] of the trained tokens."""
        scoring = batch.scoring
        logprobs, entropy = token_logprobs_and_entropy(
            self.decoder, scoring.tokens_B_T, scoring.lengths_B, scoring.temperature_B, scoring.kept, scoring.wanted
        )
        return logprobs[scoring.wanted], entropy[scoring.wanted]

    def clip(self) -> Gradient:
        """Cuts the accumulated gradient to its greatest norm.

        A gradient that is not finite is left as it is, to be dropped.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.settings.gradient_clip))
        return Gradient(norm, math.isfinite(norm))

    def apply(self, step: int) -> float:
        """Optimizer step `step` (from 1) with the accumulated gradient; returns the learning rate that it used."""
        learning_rate = self.settings.learning_rate_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.drop()
        return learning_rate

    def drop(self) -> None:
        """Forgets the accumulated gradient."""
        self.optimizer.zero_grad(set_to_none=True)


def _parameter_groups(decoder: Decoder, weight_decay: float) -> list[dict[str, object]]:
    """Decay pulls matrices only: on norms and biases it would fight what they are for."""
    parameters = list(decoder.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def _sums(batch: MicroBatch, losses: TokenLosses, loss: Tensor, logprobs: Tensor, entropy: Tensor) -> TokenSums:
    difference = (logprobs - batch.behaviour).abs()
    return TokenSums(
        tokens=float(difference.numel()),
        loss=_total(loss),
        policy_loss=_total(losses.policy),
        kl=_total(losses.kl),
        entropy=_total(entropy),
        clipped_low=_total(losses.clipped_low),
        clipped_high=_total(losses.clipped_high),
        difference=_total(difference),
        exact_tokens=_total(batch.exact),
        exact_difference=_total(difference[batch.exact]),
    )


def _total(values: Tensor) -> float:
    return float(values.detach().sum())
