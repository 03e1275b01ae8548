"""The KV of the running rows: one buffer that attention reads in place, without gathering.

A session's KV is copied in when its turn joins and out when it leaves, once a turn each; rows stay contiguous from 0 by
moving the last into a hole. Knows no sessions and no budget.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.model.cached import CachedDecoder

FIRST_CAPACITY = 64
"""Positions a row begins with; the buffer doubles when a turn needs more."""


class KeyValueRows:
    """`buffer` [layers, rows, capacity, width]; a row's positions past what was written hold old, finite numbers."""

    def __init__(self, decoder: CachedDecoder, rows: int) -> None:
        self._decoder, self._rows = decoder, rows
        self.buffer = decoder.new_cache(rows, FIRST_CAPACITY)

    @torch.inference_mode()
    def make_room(self, positions: int) -> None:
        """Rows can hold this many positions from now on; what they hold stays."""
        capacity = self.buffer.shape[2]
        if positions <= capacity:
            return
        while capacity < positions:
            capacity *= 2
        wider = self._decoder.new_cache(self._rows, capacity)
        wider[:, :, : self.buffer.shape[2]] = self.buffer
        self.buffer = wider

    @torch.inference_mode()
    def put(self, row: int, kept: Tensor, filled: int) -> None:
        """Copies the first `filled` positions of a session's KV [layers, >= filled, width] into a row."""
        self.buffer[:, row, :filled] = kept[:, :filled]

    @torch.inference_mode()
    def take(self, row: int, filled: int) -> Tensor:
        """A copy of the row's first `filled` positions, [layers, filled, width]."""
        return self.buffer[:, row, :filled].clone()

    @torch.inference_mode()
    def move(self, source: int, target: int, filled: int) -> None:
        self.buffer[:, target, :filled] = self.buffer[:, source, :filled]

    @torch.inference_mode()
    def swap(self, one: int, other: int, filled: int) -> None:
        """Exchanges two rows' first `filled` positions: the greater of both rows' counts."""
        aside = self.take(one, filled)
        self.move(other, one, filled)
        self.put(other, aside, filled)
