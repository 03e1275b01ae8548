"""The run directory: made once, never reused, complete from the first moment.

Owns its name, `config.json`, `schema.lock`, `logs/` and the lock that keeps a second `tidemill up` out. What else lies
in it belongs to the broker and the stages.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from schemas.config import PipelineConfig
from schemas.config.render import value_text
from schemas.errors import ConfigError
from schemas.lock import LOCK_FILE
from tools.up.ending import RunFailure

CONFIG = "config.json"
SUMMARY = "summary.json"
FAILURE = "failure.json"
SCHEMA_LOCK = "schema.lock"
UP_LOCK = "up.lock"
OF_ONE_START = frozenset({"broker.accept_loss"})
"""Keys that a start is given anew, and no run keeps."""
WHOLE_AGAIN = "put it back from a copy, or start a run under another --name"
KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "a truth value", type(None): "null"}
SHOWN_CHARACTERS = 200
"""Of a value, in a message."""


def name_for(pipeline: str, moment: time.struct_time) -> str:
    """The name of a run that was given none."""
    return f"{pipeline}-{time.strftime('%Y%m%d-%H%M%S', moment)}"


def with_name(config: PipelineConfig) -> PipelineConfig:
    """The same configuration, the run named."""
    if config.run.name:
        return config
    name = _unused(Path(config.run.directory), name_for(config.pipeline.name, time.localtime()))
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name})})


def _unused(directory: Path, name: str) -> str:
    tries = (name, *(f"{name}-{number}" for number in range(2, 100)))  # several runs may begin in one second
    return next(candidate for candidate in tries if not (directory / candidate).exists())


def new_run_directory(config: PipelineConfig) -> Path:
    """Makes the directory of a named run. Raises ConfigError where there is one already or none can be made."""
    path = Path(config.run.directory) / config.run.name
    try:
        path.mkdir(parents=True)
        (path / "logs").mkdir()
        (path / CONFIG).write_text(json.dumps(_plain(config), indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(LOCK_FILE, path / SCHEMA_LOCK)
    except FileExistsError:
        raise ConfigError(
            f"run {config.run.name!r}: {path} exists already, and a run directory is never reused; "
            "give another --name, or --resume to go on with a run that was cut off"
        ) from None
    except OSError as error:
        raise ConfigError(f"run.directory: {path} cannot be made: {error.strerror}") from None
    return path


def run_directory_to_resume(config: PipelineConfig) -> Path:
    """The directory of a run that was cut off, stopped, or that failed of a cause that is mended now.

    Raises ConfigError where there is none, or it cannot go on as asked.
    """
    if not config.run.name:
        raise ConfigError("--resume: which run? Give its --name, as in: tidemill up FILE --name NAME --resume")
    path = Path(config.run.directory) / config.run.name
    if not (path / CONFIG).is_file():
        raise ConfigError(f"--resume: {path} holds no run; leave --resume out to start one")
    if how_it_ended(path) == "done":
        raise ConfigError(f"--resume: run {config.run.name!r} has ended; start another under another --name")
    if not (path / SCHEMA_LOCK).is_file() or (path / SCHEMA_LOCK).read_bytes() != LOCK_FILE.read_bytes():
        raise ConfigError(f"--resume: {path} was written by another version of Tidemill (its {SCHEMA_LOCK} differs)")
    _refuse_differences(_recorded(path / CONFIG, _plain(config)), _plain(config), path)
    return path


def forget_the_end(path: Path) -> None:
    """A run that goes on has no end yet: takes the summary, and the failure, of its first part away. Raises ConfigError."""
    for name in (SUMMARY, FAILURE):
        try:
            (path / name).unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(path / name, error) from error


def how_it_ended(path: Path) -> str:
    """How the broker said that the run ended: `done`, `stopped` or `failed`; empty where it was cut off."""
    if not (path / SUMMARY).is_file():
        return "failed" if (path / FAILURE).is_file() else ""
    return str(_table(path / SUMMARY, "remove it to go on as with a run that was cut off").get("ended", "done"))


def why_it_failed(path: Path) -> RunFailure:
    """As the broker wrote it."""
    try:
        return msgspec.json.decode((path / FAILURE).read_bytes(), type=RunFailure)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return RunFailure(
            stage="broker", reason=f"{path / FAILURE} says why, and is damaged", advice="read logs/broker.log in the run directory"
        )


def _recorded(file: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """The run's configuration. Raises ConfigError where it is none."""
    found = _table(file, WHOLE_AGAIN)
    for name, section in wanted.items():
        if isinstance(section, dict) and not isinstance(found.get(name), dict):
            raise ConfigError(f"{file} is damaged: it has no section {name}; {WHOLE_AGAIN}")
    return found


def _table(file: Path, advice: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is damaged: {error}; {advice}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is damaged: {KINDS.get(type(found), 'a value')} stands there, where a table is to be; {advice}")
    return found


def _refuse_differences(recorded: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    different = next((each for each in _differences(recorded, wanted) if each[0] not in OF_ONE_START), None)
    if different is not None:
        key, old, new = different
        raise ConfigError(
            f"--resume: {key} is {_words(new)} now, but {_words(old)} in {path / CONFIG}, and a run keeps its configuration; "
            "undo that, or start a run under another --name"
        )


def _differences(recorded: Any, wanted: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if not (isinstance(recorded, dict) and isinstance(wanted, dict)):
        if recorded != wanted:
            yield key, recorded, wanted
        return
    for name in {**recorded, **wanted}:
        yield from _differences(recorded.get(name), wanted.get(name), f"{key}.{name}".lstrip("."))


def _words(value: Any) -> str:
    """As TOML writes it."""
    text = "not set" if value is None else value_text(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _plain(config: PipelineConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keeps every other `tidemill up` out of the run directory. Raises ConfigError where one is at work, or nothing can be written."""
    try:
        file = (path / UP_LOCK).open("ab")
    except OSError as error:
        raise _unusable(path / UP_LOCK, error) from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{path}: another `tidemill up` runs it at this moment") from None
        yield


def _unusable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{file}: {error.strerror}; a run is gone on with by a user who may write there")
