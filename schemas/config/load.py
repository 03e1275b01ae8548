"""From a TOML file and overrides to one checked, frozen configuration. The edge of this package: it reads files.

Every complaint is a line of one ConfigError, with the file or `--set` it comes from, the key, and what was expected.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from operator import eq
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.config.complaints import Loc, complaints
from schemas.config.facts import read_model_facts
from schemas.config.overrides import apply_overrides
from schemas.config.pipeline import PipelineConfig
from schemas.errors import ConfigError

# Where a source checkout keeps the checkpoints that ship with it.
OWN_FOLDER = Path(__file__).resolve().parents[2]


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Reads `path`, applies `overrides` ("schedule.members=4"), checks all of it; folders come back as absolute paths.

    Raises ConfigError, with one line for each thing that is wrong.
    """
    file = find_file(Path(path))
    raw, overridden = apply_overrides(read_toml(file), overrides)

    def source_of(loc: Loc) -> str:
        return "--set" if any(all(map(eq, loc, key)) for key in overridden) else str(file)

    try:
        config = PipelineConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(complaints(error, source_of))) from None
    config = resolve_folders(config, file)
    try:
        read_model_facts(config.model.path)
    except ConfigError as error:
        raise ConfigError(f"model.path: {error}") from None
    return config


def find_file(file: Path) -> Path:
    """`file` where the command is given; else the one that ships with Tidemill, if there is one of that name."""
    shipped = OWN_FOLDER / file
    return shipped if not file.exists() and not file.is_absolute() and shipped.is_file() else file


def read_toml(file: Path, hint: str = "pipelines stand under compose/pipelines/") -> dict[str, Any]:
    """The tables of a TOML file; raises ConfigError where there is none (with the `hint`) or it is not TOML."""
    if file.is_dir():
        raise ConfigError(f"{file}: is a folder, not a file; {hint}")
    try:
        if file.exists() and not file.is_file():  # a pipe or a device might never end
            raise ConfigError(f"{file}: is no regular file; give a pipeline in TOML")
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # some editors begin a file with a byte-order mark
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; {hint}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply") from None


def resolve_folders(config: PipelineConfig, file: Path) -> PipelineConfig:
    """The same configuration with every folder found and made absolute."""
    bases = list(dict.fromkeys((Path.cwd(), file.resolve().parent, OWN_FOLDER)))
    model = config.model.model_copy(update={"path": find_folder("model.path", config.model.path, bases)})
    run = config.run.model_copy(update={"directory": str(Path(config.run.directory).expanduser().absolute())})
    env, reward = config.stages.env, config.stages.reward
    found = {
        "env": env.model_copy(update={"path": _found("stages.env.path", env.path, bases)}),
        "reward": reward.model_copy(update={"path": _found("stages.reward.path", reward.path, bases)}),
    }
    return config.model_copy(update={"model": model, "run": run, "stages": config.stages.model_copy(update=found)})


def _found(key: str, folders: Sequence[str], bases: Sequence[Path]) -> tuple[str, ...]:
    return tuple(find_folder(key, folder, bases) for folder in folders)


def find_folder(key: str, folder: str, bases: Sequence[Path]) -> str:
    """The first of `bases` that holds `folder`, absolute; raises ConfigError that says which places were tried."""
    wanted = Path(folder).expanduser()
    tried = [wanted] if wanted.is_absolute() else [base / wanted for base in bases]
    for place in tried:
        if place.is_dir():
            return str(place.resolve())
    raise ConfigError(f"{key} = {folder!r}: no such folder; tried {', '.join(map(str, tried))}")
