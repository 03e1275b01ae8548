"""The resolved config of a small run, as the command line would hand it to the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemas.config import load_config

PIPELINE = """
[pipeline]
name = "skeleton"
[model]
path = "model"
[schedule]
groups_per_step = 2
members = 2
steps = 3
[evaluation]
problems = 3
[stages.env]
environment = "tests.nowhere:Environment"
sessions = 8
max_episode_tokens = 64
[stages.reward]
verifier = "tests.nowhere:verifier"
[broker]
heartbeat_s = 0.2
suspect_s = 1.0
dead_s = 5.0
grace_s = 2.0
"""


def a_run_config(folder: Path, *overrides: str) -> dict[str, Any]:
    """The config of three steps of two groups of two, `overrides` (`key=value`) applied."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "max_position_embeddings": 256}))
    (model / "model.safetensors").write_bytes(b"")
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE)
    return load_config(file, overrides).model_dump(mode="json")
