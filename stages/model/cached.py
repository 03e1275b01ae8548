"""The Qwen3 decoder for generation: a few new tokens per sequence, over a cache of keys and values, without gradients.

Owns fused copies of the weights. Promises the same numbers as `decoder.py`. Knows no turns, no sampling and no
sessions: the caller owns the cache and says which token goes where.

One call computes a packed batch: first one token for each of `steps` rows, then a chunk of several tokens for each row
after them. Products run over all packed tokens at once; attention runs once for the steps and once for the chunks.

    cache rows    0 .. steps-1                steps .. steps+len(chunks)-1
    tokens        s s s s s s s               c c c c | c c | c c c c c c
                  one a row                   chunks[0]  [1]   [2]

The cache is [layers, rows, capacity, width], width = 2 x key heads x head_dim: a token's keys, then its values, of one
layer lie together, so that a session is copied in or out as one slab.

Axes: N packed tokens, R rows, L visible positions, D head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from stages.model.checkpoint import fitted_state
from stages.model.config import DecoderConfig
from stages.model.decoder import rotary_tables
from stages.model.device import usable
from stages.model.fused import LayerWeights, fused, taken_apart


@dataclass(frozen=True)
class PackedBatch:
    """What one call computes. Positions are those in each row's own context, from 0."""

    tokens: Tensor
    """int64 [N]"""
    positions: Tensor
    """int64 [N]"""
    steps: int
    """How many rows, from row 0 on, take one token."""
    chunks: Sequence[int]
    """Tokens of each following row, all at least 1; their sum and `steps` make N."""


@dataclass(frozen=True)
class _Place:
    """Where the packed tokens of one call stand: computed once, used by every layer."""

    slots: Tensor
    """int64 [N]: row x capacity + position, the line of the flattened cache that a token writes."""
    cos: Tensor
    sin: Tensor
    """[N, 1, D]; the first half of `sin` carries the minus sign of the rotation."""
    steps: _Steps | None
    chunks: _Chunks | None


@dataclass(frozen=True)
class _Steps:
    """Attention of the rows that take one token."""

    rows: int
    visible: int
    mask: Tensor
    """[R, 1, queries a key, L]: 0 where visible, else -inf"""


@dataclass(frozen=True)
class _Chunks:
    """Attention of the rows that take a chunk, padded to the longest."""

    first_row: int
    rows: int
    longest: int
    visible: int
    mask: Tensor
    """[R, 1, queries a key x longest, L]"""
    lines: Tensor
    """int64 [tokens in chunks]: row x longest + index within the chunk, a packed token's place in the padded form."""


class CachedDecoder:
    """Computes next-token logits over a cache. `max_positions` bounds the context length that rotary tables cover."""

    def __init__(
        self,
        config: DecoderConfig,
        state: Mapping[str, Tensor],
        max_positions: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, usable(device)
        with torch.inference_mode():
            cos, sin = rotary_tables(config, torch.arange(max_positions, device=self.device), dtype)
            half = config.head_dim // 2
            self._cos, self._sin = cos, torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
        self.install(state)

    def new_cache(self, rows: int, capacity: int) -> Tensor:
        """Zeros, [layers, rows, capacity, width]."""
        shape = (self.config.num_hidden_layers, rows, capacity, self.width)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    @property
    def width(self) -> int:
        return 2 * self.config.num_key_value_heads * self.config.head_dim

    @torch.inference_mode()
    def install(self, state: Mapping[str, Tensor]) -> None:
        """Takes over weights under Hugging Face's names, all or nothing. Raises TensorMismatchError."""
        own = fitted_state(state, self.config, "install")
        own = {name: tensor.to(device=self.device, dtype=self.dtype) for name, tensor in own.items()}
        layers = [fused(own, f"model.layers.{index}.", self.config) for index in range(self.config.num_hidden_layers)]
        self._embedding = own["model.embed_tokens.weight"].clone()
        self._head = own["lm_head.weight"].clone() if "lm_head.weight" in own else self._embedding
        self._norm, self._layers = own["model.norm.weight"].clone(), layers

    def tensors_in_use(self) -> dict[str, Tensor]:
        """The weights that this decoder computes with, taken apart again under Hugging Face's names: what a digest may prove."""
        state = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if self._head is not self._embedding:
            state["lm_head.weight"] = self._head
        for index, weights in enumerate(self._layers):
            state |= taken_apart(weights, f"model.layers.{index}.", self.config)
        return state

    @torch.inference_mode()
    def logits(self, batch: PackedBatch, cache: Tensor, wanted: Tensor) -> Tensor:
        """Writes the keys and values of `batch` into `cache` and returns float32 [len(wanted), V].

        `wanted` int64: indices of packed tokens whose next token is asked for. Earlier positions of each row must have
        been written by earlier calls; later ones may hold anything finite.
        """
        place = self._place(batch, cache.shape[2])
        hidden = functional.embedding(batch.tokens, self._embedding)
        for weights, lines in zip(self._layers, cache.unbind(0), strict=True):
            hidden = self._layer(weights, hidden, lines, place)
        hidden = self._normed(hidden[wanted], self._norm)
        return functional.linear(hidden, self._head).float()

    def _place(self, batch: PackedBatch, capacity: int) -> _Place:
        sizes = torch.tensor([1] * batch.steps + list(batch.chunks), device=self.device)
        rows = torch.repeat_interleave(sizes, output_size=batch.tokens.shape[0])
        positions = batch.positions
        return _Place(
            slots=rows * capacity + positions,
            cos=self._cos[positions].unsqueeze(1),
            sin=self._sin[positions].unsqueeze(1),
            steps=self._place_steps(batch) if batch.steps else None,
            chunks=self._place_chunks(batch) if batch.chunks else None,
        )

    def _place_steps(self, batch: PackedBatch) -> _Steps:
        positions = batch.positions[: batch.steps]
        visible = int(positions.max()) + 1
        mask = self._mask(positions, visible)[:, None, None, :]
        return _Steps(batch.steps, visible, mask.expand(-1, 1, self.config.query_heads_per_key, -1))

    def _place_chunks(self, batch: PackedBatch) -> _Chunks:
        rows, longest = len(batch.chunks), max(batch.chunks)
        positions = batch.positions[batch.steps :]
        sizes = torch.tensor(batch.chunks, device=self.device)
        inside = torch.arange(longest, device=self.device)
        lines = (inside[None, :] < sizes[:, None]).flatten().nonzero()[:, 0]
        padded = torch.zeros(rows * longest, dtype=torch.int64, device=self.device)  # padding sees position 0: no NaN
        padded[lines] = positions
        visible = int(positions.max()) + 1
        mask = self._mask(padded, visible).view(rows, 1, 1, longest, visible)
        mask = mask.expand(-1, -1, self.config.query_heads_per_key, -1, -1).flatten(2, 3)
        return _Chunks(batch.steps, rows, longest, visible, mask, lines)

    def _mask(self, positions: Tensor, visible: int) -> Tensor:
        hidden = torch.arange(visible, device=self.device) > positions[:, None]
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, -torch.inf)

    def _normed(self, states: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(states, weight.shape, weight, self.config.rms_norm_eps)

    def _layer(self, weights: LayerWeights, hidden: Tensor, lines: Tensor, place: _Place) -> Tensor:
        """One layer for packed `hidden` [N, hidden]; `lines` [rows, capacity, width] is its cache."""
        normed = self._normed(hidden, weights.input_norm)
        mixed = functional.linear(normed, weights.query_key_value, weights.query_key_value_bias)
        query = self._written(weights, mixed, lines, place)
        attended = self._attended(query, lines, place)
        hidden = hidden + functional.linear(attended, weights.output, weights.output_bias)
        gate, up = functional.linear(self._normed(hidden, weights.mlp_norm), weights.gate_up).chunk(2, dim=-1)
        return hidden + functional.linear(functional.silu(gate) * up, weights.down)

    def _written(self, weights: LayerWeights, mixed: Tensor, lines: Tensor, place: _Place) -> Tensor:
        """Splits [N, queries | keys | values], normalises and rotates, writes keys and values; returns queries."""
        config, count = self.config, mixed.shape[0]
        keys_width = config.num_key_value_heads * config.head_dim
        turned = mixed[:, :-keys_width].view(count, -1, config.head_dim)
        turned = functional.rms_norm(turned, (config.head_dim,), None, config.rms_norm_eps) * weights.query_key_norm
        first, second = turned.chunk(2, dim=-1)
        turned = turned * place.cos + torch.cat((second, first), dim=-1) * place.sin
        flat = lines.view(-1, self.width)
        keys = turned[:, config.num_attention_heads :].reshape(count, keys_width)
        flat[:, :keys_width].index_copy_(0, place.slots, keys)
        flat[:, keys_width:].index_copy_(0, place.slots, mixed[:, -keys_width:])
        return turned[:, : config.num_attention_heads]

    def _attended(self, query: Tensor, lines: Tensor, place: _Place) -> Tensor:
        parts = []
        if place.steps is not None:
            parts.append(self._attend_steps(query[: place.steps.rows], lines, place.steps))
        if place.chunks is not None:
            parts.append(self._attend_chunks(query[query.shape[0] - place.chunks.lines.shape[0] :], lines, place.chunks))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _keys_values(self, lines: Tensor, rows: slice, visible: int) -> tuple[Tensor, Tensor]:
        """Views [R, key heads, L, D] of the cache; nothing is copied."""
        heads = self.config.num_key_value_heads
        both = lines[rows, :visible].unflatten(2, (2 * heads, self.config.head_dim)).transpose(1, 2)
        return both[:, :heads], both[:, heads:]

    def _attend_steps(self, query: Tensor, lines: Tensor, steps: _Steps) -> Tensor:
        """The query heads that share a key head stand as so many queries of one head: no key is repeated."""
        keys, values = self._keys_values(lines, slice(0, steps.rows), steps.visible)
        grouped = query.reshape(steps.rows, keys.shape[1], -1, self.config.head_dim)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=steps.mask)
        return mixed.reshape(steps.rows, -1)

    def _attend_chunks(self, query: Tensor, lines: Tensor, chunks: _Chunks) -> Tensor:
        config, rows, longest = self.config, chunks.rows, chunks.longest
        keys, values = self._keys_values(lines, slice(chunks.first_row, chunks.first_row + rows), chunks.visible)
        width = config.num_attention_heads * config.head_dim
        padded = query.new_zeros((rows * longest, width))
        padded[chunks.lines] = query.reshape(-1, width)
        grouped = padded.view(rows, longest, config.num_key_value_heads, -1, config.head_dim)
        grouped = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=chunks.mask)
        mixed = mixed.unflatten(2, (-1, longest)).permute(0, 3, 1, 2, 4).reshape(rows * longest, width)
        return mixed[chunks.lines]
