"""What the configuration needs to know of a model folder before anything is started, read without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError

BUILT_MODEL_TYPES = ("qwen3",)
PLANNED_MODEL_TYPES = ("qwen2", "llama")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Of a `config.json`: the architecture's name and the longest context in tokens (None where it does not say)."""

    model_type: str
    max_position_embeddings: int | None


def read_model_facts(folder: Path | str) -> ModelFacts:
    """Reads and checks a Hugging Face folder; raises ConfigError with one line where it cannot be trained from."""
    folder = Path(folder)
    config = _read_config(folder)
    model_type = config.get("model_type")
    if model_type not in BUILT_MODEL_TYPES:
        refusal = "is not built yet" if model_type in PLANNED_MODEL_TYPES else "is unknown"
        raise ConfigError(f"{folder}/config.json: model_type = {model_type!r} {refusal}; use one of {BUILT_MODEL_TYPES}")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder}: no *.safetensors in it; `tidemill warm-start` makes a starting checkpoint")
    longest = config.get("max_position_embeddings")
    return ModelFacts(model_type=model_type, max_position_embeddings=longest if isinstance(longest, int) else None)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file}: is no regular file")
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{folder}: no config.json in it, so it is no Hugging Face folder") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: expected a JSON object")
    return config
