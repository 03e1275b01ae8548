"""The embedded engine as the config wants it, and the proof of which weights it computes with. Imports torch.

The engine computes with fused copies of a version's tensors: what its receipt says is computed from those copies, taken apart
again under their file's names. A copy that went wrong, in whatever layer, shows in the digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from schemas.config import PipelineConfig
from stages.model.cached import CachedDecoder
from stages.model.checkpoint import fitted_state, overall_digest, read_state, tensor_digests
from stages.model.config import read_config
from stages.rollout.torch_engine import EngineLimits, TorchEngine
from stages.rollout.weights import InstallRefusedError, Replica

NOTHING_INSTALLED = -1
"""The engine's version before its first install: the starting weights give it its sizes, and answer no turn."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def torch_replica(config: PipelineConfig) -> Replica:
    """The engine of `[stages.rollout]` over the sizes of `model.path`. Raises ModelError."""
    settings = config.stages.rollout
    if settings.device == "cpu":
        torch.set_num_threads(1)  # a slot is one core; two threads on two busy cores ran small products 140 times slower
    sizes = read_config(config.model.path)
    limits = EngineLimits(
        max_rows=settings.max_running,
        max_context_tokens=config.stages.env.max_episode_tokens,
        kv_tokens=settings.kv_tokens,
        prefill_tokens=settings.prefill_tokens,
    )
    state = fitted_state(read_state(config.model.path), sizes, config.model.path)
    engine = TorchEngine(sizes, NOTHING_INSTALLED, state, limits, DTYPES[settings.dtype], settings.device)
    return Replica(engine, TorchWeights(engine._decoder))


class TorchWeights:
    """See stages.rollout.weights.Weights."""

    def __init__(self, decoder: CachedDecoder) -> None:
        self._decoder = decoder

    def read(self, location: str) -> dict[str, Tensor]:
        """All tensors of a model directory, on the CPU. Raises ModelError where they do not fit this engine."""
        return fitted_state(read_state(location), self._decoder.config, location)

    def digests(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        return tensor_digests(state)

    def digest_in_use(self, state: Mapping[str, Tensor]) -> str:
        used = tensor_digests(tensors_in_use(self._decoder))
        cast = tensor_digests({name: tensor.to(self._decoder.dtype) for name, tensor in state.items()})
        wrong = sorted(name for name in cast.keys() | used.keys() if cast.get(name) != used.get(name))
        if wrong:
            raise InstallRefusedError(f"the tensors in use are not what was read: {', '.join(wrong[:3])}")
        same = all(tensor.dtype == self._decoder.dtype for tensor in state.values())
        return overall_digest(used if same else tensor_digests(state))


def tensors_in_use(decoder: CachedDecoder) -> dict[str, Tensor]:
    """The decoder's own tensors under Hugging Face's names: the inverse of how it fuses them."""
    state = {"model.embed_tokens.weight": decoder._embedding, "model.norm.weight": decoder._norm}
    if decoder._head is not decoder._embedding:
        state["lm_head.weight"] = decoder._head
    for index in range(decoder.config.num_hidden_layers):
        state |= {f"model.layers.{index}.{name}": tensor for name, tensor in _layer(decoder, index)}
    return state


def _layer(decoder: CachedDecoder, index: int) -> Iterator[tuple[str, Tensor]]:
    config, weights = decoder.config, decoder._layers[index]
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    sizes = [heads * config.head_dim, keys * config.head_dim, keys * config.head_dim]
    projections = ("q_proj", "k_proj", "v_proj")
    yield "input_layernorm.weight", weights.input_norm
    for name, tensor in zip(projections, weights.query_key_value.split(sizes), strict=True):
        yield f"self_attn.{name}.weight", tensor
    if weights.query_key_value_bias is not None:
        for name, tensor in zip(projections, weights.query_key_value_bias.split(sizes), strict=True):
            yield f"self_attn.{name}.bias", tensor
    yield "self_attn.q_norm.weight", _only_row(weights.query_key_norm[:heads])
    yield "self_attn.k_norm.weight", _only_row(weights.query_key_norm[heads:])
    yield "self_attn.o_proj.weight", weights.output
    if weights.output_bias is not None:
        yield "self_attn.o_proj.bias", weights.output_bias
    yield "post_attention_layernorm.weight", weights.mlp_norm
    gate, up = weights.gate_up.split(config.intermediate_size)
    yield "mlp.gate_proj.weight", gate
    yield "mlp.up_proj.weight", up
    yield "mlp.down_proj.weight", weights.down


def _only_row(rows: Tensor) -> Tensor:
    """The row that all of `rows` repeat. Raises InstallRefusedError where they do not."""
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise InstallRefusedError("the heads' norms in use differ from each other")
    return rows[0]
