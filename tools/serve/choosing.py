"""Which run a broker serves that is started by the same command again and again, by a person or by a supervisor.

| the run of that name; without a name, the pipeline's newest | without a name | with a name | with --resume |
|---|---|---|---|
| there is none | new | new | new |
| it has not ended | goes on | goes on | goes on |
| it has reached its steps | new | over | over; without a name new |
| it was stopped by a person | new | over | goes on |
| it failed | over | over | goes on |

A supervisor that starts a failed run again would only see it fail again: a person says so, by --resume.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from schemas.config import PipelineConfig
from schemas.errors import ConfigError
from tools.up.directory import CONFIG, FAILURE, SUMMARY, how_it_ended, run_directory_to_resume

DONE = "done"
STOPPED = "stopped"
FAILED = "failed"


class Chosen(Struct, frozen=True):
    """A run directory that is there, None for a new run; `over`: how it ended, where there is nothing left to serve."""

    directory: Path | None = None
    over: str = ""


def choose(config: PipelineConfig, *, resume: bool) -> Chosen:
    """Raises ConfigError where a run cannot go on as it is configured now."""
    found = _named(config) if config.run.name else _newest(config)
    ended = how_it_ended(found) if found is not None else ""
    if found is None or (not config.run.name and (ended == DONE or (ended == STOPPED and not resume))):
        return Chosen()
    if ended and (ended == DONE or not resume):
        return Chosen(found, ended)
    return Chosen(_to_go_on(config, found))


def _to_go_on(config: PipelineConfig, found: Path) -> Path:
    try:
        return run_directory_to_resume(config.model_copy(update={"run": config.run.model_copy(update={"name": found.name})}))
    except ConfigError as error:
        wanted = str(error).removeprefix("--resume: ")
        raise ConfigError(f"run {found.name!r} has not reached its steps and would be gone on with, but {wanted}") from None


def _named(config: PipelineConfig) -> Path | None:
    path = Path(config.run.directory) / config.run.name
    return path if _is_run(path) else None


def _newest(config: PipelineConfig) -> Path | None:
    """The run of this pipeline that was begun last."""
    folders = Path(config.run.directory).glob(f"*/{CONFIG}")
    begun = [(file.stat().st_mtime_ns, file.parent) for file in folders if _pipeline(file) == config.pipeline.name]
    return max(begun)[1] if begun else None


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file() or (path / SUMMARY).is_file() or (path / FAILURE).is_file()


def _pipeline(file: Path) -> str:
    try:
        return str(json.loads(file.read_bytes())["pipeline"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # somebody else's file, or one that is being written
