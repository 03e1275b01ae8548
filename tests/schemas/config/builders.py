"""Makes configurations for tests: a small valid one, with what a test is about changed."""

import json
from pathlib import Path

from schemas.config import PipelineConfig, load_config

SMALL = """
[pipeline]
name = "small"
[model]
path = "model"
[stages.env]
environment = "my_module:MyEnvironment"
[stages.reward]
verifier = "my_module:my_reward"
"""


def a_model(folder: Path, model_type: str = "qwen3", max_position_embeddings: int = 256) -> Path:
    """A folder that looks like a checkpoint as far as the configuration reads one."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"model_type": model_type, "max_position_embeddings": max_position_embeddings}
    (folder / "config.json").write_text(json.dumps(facts))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def a_file(folder: Path, extra: str = "") -> Path:
    """A valid pipeline file with its model beside it, and `extra` TOML at its end."""
    a_model(folder / "model")
    file = folder / "pipeline.toml"
    file.write_text(SMALL + extra)
    return file


def a_config(folder: Path, *overrides: str) -> PipelineConfig:
    """A loaded configuration with `overrides` applied."""
    return load_config(a_file(folder), overrides)
