from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.model.config import DecoderConfig, config_from_hugging_face, read_config
from stages.model.errors import CheckpointError, UnsupportedModelError

PLAIN = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def test_the_rotary_base_is_read_under_the_names_of_both_eras() -> None:
    old = config_from_hugging_face(PLAIN | {"rope_theta": 1_000_000, "rope_scaling": None})
    new = config_from_hugging_face(PLAIN | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    assert old.rope_theta == new.rope_theta == 1e6


def test_a_config_survives_being_written_and_read() -> None:
    config = config_from_hugging_face(PLAIN | {"eos_token_id": [3, 4], "tie_word_embeddings": True})
    assert config_from_hugging_face(json.loads(json.dumps(config.to_hugging_face("float32")))) == config


def test_head_dim_and_key_heads_fall_back_as_hugging_face_does() -> None:
    short = {name: value for name, value in PLAIN.items() if name not in ("head_dim", "num_key_value_heads")}
    config = config_from_hugging_face(short)
    assert (config.head_dim, config.num_key_value_heads) == (24, 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"head_dim": 33}, "head_dim"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"head_dim": "32"}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta"),
        ({"max_position_embeddings": 1.5}, "max_position_embeddings"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        config_from_hugging_face(PLAIN | change)


def test_a_directory_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        read_config(tmp_path)


def test_a_config_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read_config(tmp_path)


def test_the_config_imports_without_torch() -> None:
    script = "import sys, stages.model.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_sizes_must_be_given() -> None:
    with pytest.raises(TypeError):
        DecoderConfig(vocab_size=3)  # type: ignore[call-arg]
