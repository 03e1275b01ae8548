"""The weights of a layer as generation wants them: products over the same input in one matrix. And the way back.

Owns which tensors are joined. Promises that `taken_apart` gives what `fused` was given, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.errors import InvariantError
from stages.model.config import DecoderConfig

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATED = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True)
class LayerWeights:
    """Matrices are [outputs, inputs]. Biases are None unless the config has `attention_bias`."""

    input_norm: Tensor
    query_key_value: Tensor
    query_key_value_bias: Tensor | None
    query_key_norm: Tensor
    """[query heads + key heads, head_dim]: both norms, repeated for each head, so that one pass normalises all."""
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def fused(state: Mapping[str, Tensor], prefix: str, config: DecoderConfig) -> LayerWeights:
    """Copies the tensors "{prefix}..." of a checked state; later changes to `state` do not show."""

    def joined(names: Iterable[str], kind: str = "weight") -> Tensor:
        return torch.cat([state[f"{prefix}{name}.{kind}"] for name in names])

    query_norm = state[f"{prefix}self_attn.q_norm.weight"].expand(config.num_attention_heads, -1)
    key_norm = state[f"{prefix}self_attn.k_norm.weight"].expand(config.num_key_value_heads, -1)
    return LayerWeights(
        input_norm=joined(["input_layernorm"]),
        query_key_value=joined(ATTENTION),
        query_key_value_bias=joined(ATTENTION, "bias") if config.attention_bias else None,
        query_key_norm=torch.cat((query_norm, key_norm)),
        output=joined(["self_attn.o_proj"]),
        output_bias=joined(["self_attn.o_proj"], "bias") if config.attention_bias else None,
        mlp_norm=joined(["post_attention_layernorm"]),
        gate_up=joined(GATED),
        down=joined(["mlp.down_proj"]),
    )


def taken_apart(weights: LayerWeights, prefix: str, config: DecoderConfig) -> dict[str, Tensor]:
    """Views of the fused tensors under their own names. Raises InvariantError where a head's copy of a norm differs."""
    heads, dim = config.num_attention_heads, config.head_dim
    sizes = [heads * dim, config.num_key_value_heads * dim, config.num_key_value_heads * dim]
    state = dict(zip(_named(ATTENTION, "weight"), weights.query_key_value.split(sizes), strict=True))
    if weights.query_key_value_bias is not None and weights.output_bias is not None:
        state |= zip(_named(ATTENTION, "bias"), weights.query_key_value_bias.split(sizes), strict=True)
        state["self_attn.o_proj.bias"] = weights.output_bias
    state |= zip(_named(GATED, "weight"), weights.gate_up.split(config.intermediate_size), strict=True)
    state |= {
        "input_layernorm.weight": weights.input_norm,
        "self_attn.q_norm.weight": _the_row(weights.query_key_norm[:heads]),
        "self_attn.k_norm.weight": _the_row(weights.query_key_norm[heads:]),
        "self_attn.o_proj.weight": weights.output,
        "post_attention_layernorm.weight": weights.mlp_norm,
        "mlp.down_proj.weight": weights.down,
    }
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def _named(names: Iterable[str], kind: str) -> list[str]:
    return [f"{name}.{kind}" for name in names]


def _the_row(rows: Tensor) -> Tensor:
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise InvariantError("the copies of one norm in use differ from head to head")
    return rows[0]
