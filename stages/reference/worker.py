"""The heavy thing of reference: the frozen starting model, and the log-probs of samples under it.

Promises the treatment of the trainer: under each sample's temperature, restricted to its kept ids, 0 where the
policy did not sample. What a sample gets does not depend on whom it shares a batch with, but for rounding. Computes
on one thread. Knows no broker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from schemas.records import Sample
from stages.model.checkpoint import load_decoder, overall_digest, tensor_digests
from stages.model.logprobs import token_logprobs
from stages.model.packing import Segment, packed_by_length, padded, segments_of
from stages.reference.settings import ReferenceSettings


class FrozenModel:
    def __init__(self, settings: ReferenceSettings) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self.decoder = load_decoder(settings.model_path, getattr(torch, settings.dtype), settings.device)
        self.decoder.requires_grad_(False)

    def digest(self) -> str:
        """Of the tensors in use."""
        return overall_digest(tensor_digests(self.decoder.state_dict()))

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """float32 [T] for each sample. Raises WireError where a sample does not fit together."""
        scores = [np.zeros(len(sample.tokens), np.float32) for sample in samples]
        pieces = [(score, piece) for score, sample in zip(scores, samples, strict=True) for piece in segments_of(sample)]
        for batch in packed_by_length([len(piece.tokens) for _, piece in pieces], self.settings.batch_tokens):
            self._score([pieces[index] for index in batch])
        return scores

    @torch.inference_mode()
    def _score(self, pieces: Sequence[tuple[np.ndarray, Segment]]) -> None:
        """Writes the log-probs of each segment into its place in the sample's vector."""
        batch = padded([piece for _, piece in pieces], [piece.sampled for _, piece in pieces], self.settings.device)
        found = token_logprobs(self.decoder, batch.tokens_B_T, batch.lengths_B, batch.temperature_B, batch.kept, batch.wanted)
        for (score, piece), row in zip(pieces, found.cpu().numpy(), strict=True):
            score[piece.start + 1 : piece.end] = row[: len(piece.tokens) - 1]
