"""The Qwen3 decoder for training and scoring: whole sequences, causal, with gradients.

Owns the architecture. Promises tensor names and numbers equal to Hugging Face's Qwen3ForCausalLM (tested to 1e-4 in
float32), on any device and dtype. Knows no files, no sampling and no cache: `cached.py`
computes the same function token by token.

    tokens ─ embed ─┬─ norm ─ attention ─(+)─┬─ norm ─ gated MLP ─(+)─ ... x layers ─ norm ─ head ─ logits
                    └────────────────────────┘└────────────────────┘

Axes: B sequences, T positions, N picked positions, H hidden, V vocabulary.
"""

# ruff: noqa: N803 - axes are upper-case suffixes

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stages.model.config import DecoderConfig


def rotary_tables(config: DecoderConfig, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary positions (Su et al., RoFormer), each [*positions.shape, head_dim].

    Angles are computed in float32 whatever the model's dtype, as Hugging Face does.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device)
    angles = positions[..., None].float() * (1.0 / config.rope_theta ** (half / config.head_dim))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns `states` [..., head_dim] by the angles of broadcastable tables; halves are paired, not neighbours."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, accumulated in float32, scaled by a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        return functional.rms_norm(states, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, hidden_B_T_H: Tensor, cos_T_D: Tensor, sin_T_D: Tensor) -> Tensor:
        per_head = (*hidden_B_T_H.shape[:2], -1, self.config.head_dim)
        query = self.q_norm(self.q_proj(hidden_B_T_H).view(per_head)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_B_T_H).view(per_head)).transpose(1, 2)
        value = self.v_proj(hidden_B_T_H).view(per_head).transpose(1, 2)
        query, key = rotate(query, cos_T_D, sin_T_D), rotate(key, cos_T_D, sin_T_D)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, hidden_B_T_H: Tensor, cos_T_D: Tensor, sin_T_D: Tensor) -> Tensor:
        hidden = hidden_B_T_H + self.self_attn(self.input_layernorm(hidden_B_T_H), cos_T_D, sin_T_D)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Backbone(nn.Module):
    """Everything below the head; named `model` inside the decoder, as Hugging Face names it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens_B_T: Tensor) -> Tensor:
        hidden = self.embed_tokens(tokens_B_T)
        positions = torch.arange(tokens_B_T.shape[1], device=tokens_B_T.device)
        cos, sin = rotary_tables(self.config, positions, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin)
        return self.norm(hidden)


class Decoder(nn.Module):
    """A causal language model with Hugging Face's tensor names. With tied embeddings it has no `lm_head`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens_B_T: Tensor, picked_B_T: Tensor | None = None) -> Tensor:
        """Logits of the next token, in the model's dtype.

        `tokens_B_T` int64, padded on the right with any valid id: attention is causal, so padding reaches no
        real position and needs no mask. Without `picked_B_T` the result is [B, T, V]; with it (bool) the head is
        computed at the picked positions only and the result is [N, V], in row-major order of the picks.
        """
        hidden = self.model(tokens_B_T)
        if picked_B_T is not None:
            hidden = hidden[picked_B_T]
        head = self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight
        return functional.linear(hidden, head)

    @torch.no_grad()
    def initialise(self, seed: int) -> Decoder:
        """Fresh weights, the same for a seed: matrices normal(0, initializer_range), biases 0. Returns itself."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                fresh = torch.empty(parameter.shape).normal_(0.0, self.config.initializer_range, generator=generator)
                parameter.copy_(fresh)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        return self
