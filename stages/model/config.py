"""What a decoder is made of, read from and written to a Hugging Face `config.json`.

Owns the list of architectures and variants that the decoder computes. Promises that a config it accepts is computed as
Hugging Face would, and that every other one is refused by name. Knows no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.model.errors import CheckpointError, UnsupportedModelError

SUPPORTED_MODEL_TYPES = ("qwen3",)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and constants of a dense Qwen3 decoder, under Hugging Face's names. Sizes count elements."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    initializer_range: float = 0.02
    """Standard deviation of fresh weights."""
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in vars(self).items() if name.endswith(("_size", "_layers", "_heads"))}
        for name, value in sizes.items() | {("head_dim", self.head_dim)}:
            if value < 1:
                raise UnsupportedModelError(f"{name} is {value}; it must be at least 1")
        if self.num_attention_heads % self.num_key_value_heads:
            raise UnsupportedModelError(
                f"{self.num_attention_heads} attention heads cannot share {self.num_key_value_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim is {self.head_dim}; rotary positions need an even one")

    @property
    def query_heads_per_key(self) -> int:
        return self.num_attention_heads // self.num_key_value_heads

    def to_hugging_face(self, dtype: str) -> dict[str, Any]:
        """The `config.json` that transformers reads; `dtype` as "float32".

        Holds the rotary base under the names of both eras.
        """
        written = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "use_sliding_window": False,
            "use_cache": True,
            "dtype": dtype,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            **written,
        }


def read_config(path: Path | str) -> DecoderConfig:
    """Reads `config.json` of a model directory. Raises CheckpointError (absent, not JSON), UnsupportedModelError."""
    file = Path(path) / "config.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{file} does not exist; give a Hugging Face model directory") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return config_from_hugging_face(raw, str(file))


def config_from_hugging_face(raw: Mapping[str, Any], where: str = "config.json") -> DecoderConfig:
    """Turns a parsed `config.json` into a DecoderConfig. Raises UnsupportedModelError by name."""
    _refuse_what_is_not_computed(raw, where)
    heads = _required(raw, "num_attention_heads", where)
    hidden = _required(raw, "hidden_size", where)
    eos = raw.get("eos_token_id")
    return DecoderConfig(
        vocab_size=_required(raw, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=_required(raw, "intermediate_size", where),
        num_hidden_layers=_required(raw, "num_hidden_layers", where),
        num_attention_heads=heads,
        num_key_value_heads=_required(raw, "num_key_value_heads", where) if raw.get("num_key_value_heads") else heads,
        head_dim=_required(raw, "head_dim", where) if raw.get("head_dim") else hidden // max(1, heads),
        max_position_embeddings=_required({"max_position_embeddings": 32_768, **raw}, "max_position_embeddings", where),
        rope_theta=_positive({"rope_theta": _rope(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0}, "rope_theta", where),
        rms_norm_eps=_positive({"rms_norm_eps": 1e-6, **raw}, "rms_norm_eps", where),
        tie_word_embeddings=_flag(raw, "tie_word_embeddings", where),
        attention_bias=_flag(raw, "attention_bias", where),
        initializer_range=_positive({"initializer_range": 0.02, **raw}, "initializer_range", where),
        bos_token_id=raw.get("bos_token_id"),
        eos_token_id=tuple(eos) if isinstance(eos, list) else eos,
        pad_token_id=raw.get("pad_token_id"),
    )


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings: `rope_parameters` since transformers 5, `rope_scaling` (null when plain) before."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _refuse_what_is_not_computed(raw: Mapping[str, Any], where: str) -> None:
    model_type = raw.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        known = ", ".join(SUPPORTED_MODEL_TYPES)
        raise UnsupportedModelError(f"{where}: model_type {model_type!r} is not supported; supported: {known} (dense)")
    rope_type = _rope(raw).get("rope_type", _rope(raw).get("type", "default"))
    variants = {
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "use_sliding_window": (bool(raw.get("use_sliding_window", False)), False),
        "rope_type": (rope_type, "default"),
        "attention_dropout": (raw.get("attention_dropout") or 0.0, 0.0),
        "quantization_config": (raw.get("quantization_config"), None),
    }
    for name, (found, computed) in variants.items():
        if found != computed:
            raise UnsupportedModelError(f"{where}: {name} is {found!r}; the {model_type} decoder computes only {computed!r}")


def _required(raw: Mapping[str, Any], name: str, where: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnsupportedModelError(f"{where}: {name} must be a whole number, found {value!r}")
    return value


def _positive(raw: Mapping[str, Any], name: str, where: str) -> float:
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise UnsupportedModelError(f"{where}: {name} must be a number above 0, found {value!r}")
    return float(value)


def _flag(raw: Mapping[str, Any], name: str, where: str) -> bool:
    value = raw.get(name, False)
    if not isinstance(value, bool):
        raise UnsupportedModelError(f"{where}: {name} must be true or false, found {value!r}")
    return value
