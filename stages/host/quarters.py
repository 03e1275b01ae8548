"""Where a host works: in the run directory, if the broker's is on this machine, else in a directory of its own.

A host on another machine shares no file system with the broker. Owns the layout `<directory>/<run>/logs`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ConfigError
from schemas.messages import Welcome
from stages.blobs.cache import DIRECTORY_VARIABLE
from stages.blobs.cache import default_directory as shared_cache

CONFIG = "config.json"


@dataclass(frozen=True)
class Quarters:
    """`directory`: of this run; `shared`: it is the broker's run directory."""

    directory: Path
    shared: bool

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.directory / "logs"

    @property
    def cache(self) -> Path:
        """What came over the network, for all runs of this host; `$TIDEMILL_CACHE` where that is set."""
        named = os.environ.get(DIRECTORY_VARIABLE, "")
        return shared_cache() if self.shared or named else self.directory.parent / "cache"

    @property
    def own(self) -> str:
        """What the broker is told: the directory, empty where it is the run directory."""
        return "" if self.shared else str(self.directory)


def default_directory(name: str) -> Path:
    """`$XDG_CACHE_HOME`, else `~/.cache`."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "tidemill" / "hosts" / name


def quarters_for(welcome: Welcome, name: str, wanted: Path | None) -> Quarters:
    """`wanted`: the directory that was asked for; None: the run directory if it is here. Raises ConfigError where none can be made."""
    if wanted is None and reaches_run_directory(welcome):
        return Quarters(Path(welcome.run_directory), shared=True)
    base = (wanted or default_directory(name)).expanduser().absolute()
    try:
        (base / _run_name(welcome) / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--directory {base}: cannot be used: {error.strerror}; name a directory that this host may write in") from None
    return Quarters(base / _run_name(welcome), shared=False)


def reaches_run_directory(welcome: Welcome) -> bool:
    """Whether the run directory that the broker names is on this machine: a file system of the same paths may be another one's."""
    try:
        found = json.loads((Path(welcome.run_directory) / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == welcome.config)


def _run_name(welcome: Welcome) -> str:
    named = welcome.config.get("run", {}).get("name", "") if isinstance(welcome.config.get("run"), dict) else ""
    return str(named) or Path(welcome.run_directory).name or "run"
