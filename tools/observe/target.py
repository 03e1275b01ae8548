"""Which run is meant: a run directory, the name of a run, or an endpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

from msgspec import Struct

from broker.keys import KEY_VARIABLE, ClientKeys, client_keys
from schemas.config.broker import check_broker_named
from schemas.errors import ConfigError
from tools.keys.local import local_keys

RUNS = Path("runs")


class Target(Struct, frozen=True, kw_only=True):
    """`endpoint` is empty where the run directory does not say one; `directory` is None where only an endpoint was given."""

    endpoint: str
    directory: Path | None = None

    def keys(self) -> ClientKeys | None:
        """Keys to ask that broker with: the environment's; on its own machine, the run's own. Raises ConfigError for unusable ones."""
        if self.directory is None or os.environ.get(KEY_VARIABLE, ""):
            return client_keys()
        return local_keys(self.endpoint, _keys_of(self.directory / "config.json"))

    @property
    def words(self) -> str:
        """What to call it."""
        return str(self.directory) if self.directory is not None else self.endpoint


def find(text: str) -> Target:
    """RUN or ENDPOINT as given on the command line. Raises ConfigError where there is no such run."""
    if "://" in text:
        return Target(endpoint=check_broker_named(text, "RUN|ENDPOINT"))
    for directory in (Path(text), RUNS / text):
        if (directory / "config.json").is_file() or (directory / "journal").is_dir():
            file = directory / "endpoint"
            return Target(endpoint=file.read_text().strip() if file.is_file() else "", directory=directory.resolve())
    raise ConfigError(f"{text}: neither a run directory, nor a run in {RUNS}/, nor an endpoint such as ipc:///path or tcp://127.0.0.1:5555")


def _keys_of(config: Path) -> str:
    """Where the run's keys are kept; empty, the usual place, where its configuration is not there or damaged."""
    try:
        return str(json.loads(config.read_bytes())["broker"]["keys"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
