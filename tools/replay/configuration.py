"""What a stage is played under: the configuration that the run recorded, what is set otherwise, and the user code that is tried instead.

Promises: each complaint is one that `tidemill up` would make, with `config.json` in the place of the pipeline's file; code that the stage
would not load is refused, not passed over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.machinery import PathFinder
from operator import eq
from pathlib import Path
from typing import Any

from schemas.config import PipelineConfig
from schemas.config.complaints import Loc, complaints
from schemas.config.overrides import apply_overrides
from schemas.edges import Role
from schemas.errors import ConfigError
from tools.records.opening import Run
from tools.records.words import tokenizer_of

NAMES_CODE = {Role.ENV: "environment", Role.REWARD: "verifier"}
"""The key that names a stage's user code, of those that have any."""


def replay_config(run: Run, overrides: Sequence[str]) -> dict[str, Any]:
    """The recorded configuration with `overrides`. Raises ConfigError."""
    from pydantic import ValidationError

    raw, overridden = apply_overrides(recorded_config(run), overrides)

    def source_of(loc: Loc) -> str:
        return "--set" if any(all(map(eq, loc, key)) for key in overridden) else name_of(run)

    try:
        return PipelineConfig.model_validate(raw).model_dump(mode="json")
    except ValidationError as error:
        raise ConfigError("\n".join(complaints(error, source_of))) from None


def recorded_config(run: Run) -> dict[str, Any]:
    """As it stands in the run. Raises ConfigError where it is not there as it was written."""
    without = "; without it nothing of the run can be played"
    try:
        found = json.loads((run.directory / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{name_of(run)}: {error.strerror}{without}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name_of(run)}: is not JSON ({error}){without}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{name_of(run)}: holds no configuration{without}")
    return found


def name_of(run: Run) -> str:
    """The file, as people find it: one in a cut has no place of its own."""
    return f"config.json in {run.name}" if run.manifest else str(run.directory / "config.json")


# --- user code ---------------------------------------------------------------------------------------------------------------------


def with_code(config: dict[str, Any], role: Role, code: Path | None) -> dict[str, Any]:
    """With the folder of `code` before the recorded ones. Raises ConfigError where the stage would not load it."""
    if code is None:
        return config
    if role not in NAMES_CODE:
        raise ConfigError(f"--code {code}: a {role} runs no user code; {' and '.join(NAMES_CODE)} do")
    if not code.exists():
        raise ConfigError(f"--code {code}: no such file or folder")
    section, key = config["stages"][role], NAMES_CODE[role]
    module = section[key].partition(":")[0]
    folder = _folder_with(module, code)
    if folder is None:
        raise ConfigError(
            f"--code {code}: has no module {module}, and stages.{role}.{key} of the run is {section[key]}; give the folder that holds"
            f" {module.replace('.', '/')}.py, or that file"
        )
    return {**config, "stages": {**config["stages"], role: {**section, "path": [str(folder), *section["path"]]}}}


def _folder_with(module: str, code: Path) -> Path | None:
    """The folder under which Python finds the module in `code`."""
    code = code.resolve()
    if code.is_dir():
        return code if _source_of(module, code) is not None else None
    above = code.parents[min(module.count("."), len(code.parents) - 1)]
    return above if _source_of(module, above) == code else None


def _source_of(module: str, folder: Path) -> Path | None:
    """Its file, as the import system would find it; nothing is imported."""
    places, source, name = [str(folder)], None, ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        found = PathFinder.find_spec(name, places)
        if found is None:
            return None
        places, source = list(found.submodule_search_locations or ()), found.origin
    return Path(source).resolve() if source is not None else None


# --- the model ---------------------------------------------------------------------------------------------------------------------


def with_model(config: dict[str, Any], run: Run, role: Role) -> dict[str, Any]:
    """With a model's folder that is here: nobody serves files to a replayed stage. A reward needs the tokenizer alone, which a cut and
    a checkpoint hold as well. Raises ConfigError where there is none."""
    path = config["model"]["path"]
    if role is Role.WEIGHT_SYNC or Path(path).is_dir():
        return config
    tokenizer = tokenizer_of(run) if role is Role.REWARD else None
    if tokenizer is None:
        raise ConfigError(f"model.path: the recorded folder {path} is not on this machine; say where it is: --set model.path=FOLDER")
    return {**config, "model": {**config["model"], "path": str(tokenizer.parent)}}
