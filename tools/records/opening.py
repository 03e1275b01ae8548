"""Which recorded run is meant, opened for reading: a run directory, a run's name, or a cut file (`.tide`).

Promises: nothing of a run is written, its lock is not taken. A cut file is unpacked into a folder of its own, which goes with `close`.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

from schemas.errors import ConfigError

RUNS = Path("runs")
MEMBERS = re.compile(r"manifest\.json|tokenizer\.json|config\.json|schema\.lock|journal/[0-9]{8}\.log|journal/[0-9]{16}\.checkpoint")
"""All that a cut file may hold: nothing else is unpacked from it."""
UNPACKED_BYTES_MAX = 64 << 30


class Run:
    """A run directory. `manifest` says what was cut out, where it is a cut file; empty for a whole run."""

    def __init__(self, name: str, directory: Path, *, unpacked: bool = False) -> None:
        self.name = name
        self.directory = directory
        self.journal = directory / "journal"
        self._unpacked = unpacked
        self.config: dict[str, Any] = json_of(directory / "config.json")
        self.lock: dict[str, Any] = json_of(directory / "schema.lock")
        self.manifest: dict[str, Any] = json_of(directory / "manifest.json")

    @property
    def is_live(self) -> bool:
        """A broker holds the journal's lock at this moment; read from the kernel's list, for taking the lock could keep one out."""
        try:
            inode = (self.journal / "lock").stat().st_ino
            lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        return any(f":{inode}" in line.split()[5] for line in lines if " FLOCK " in line and "->" not in line)

    def close(self) -> None:
        """Removes what was unpacked."""
        if self._unpacked:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_run(text: str) -> Run:
    """RUN as given on the command line. Raises ConfigError where there is no such run, or nothing was recorded in it."""
    if Path(text).is_file():
        return Run(Path(text).name, _unpack(Path(text)), unpacked=True)
    for directory in (Path(text), RUNS / text):
        if (directory / "journal").is_dir():
            return Run(directory.resolve().name, directory.resolve())
        if (directory / "config.json").is_file():
            raise ConfigError(f"{directory}: the run has no journal yet; was its broker ever started?")
    raise ConfigError(f"{text}: neither a run directory, nor a run in {RUNS}/, nor a file made by `tidemill cut`")


def _unpack(path: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if MEMBERS.fullmatch(member.filename)]
            if not any(member.filename == "manifest.json" for member in members):
                raise ConfigError(f"{path}: no cut of a run (it has no manifest.json)")
            if sum(member.file_size for member in members) > UNPACKED_BYTES_MAX:
                raise ConfigError(f"{path}: unpacks to more than {UNPACKED_BYTES_MAX >> 30} GiB; that is no cut of a run")
            folder = Path(tempfile.mkdtemp(prefix="tidemill-cut-"))
            archive.extractall(folder, members)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ConfigError(f"{path}: not a file made by `tidemill cut`, or damaged: {error}") from error
    (folder / "journal").mkdir(exist_ok=True)
    return folder


def json_of(path: Path) -> dict[str, Any]:
    """A file of the run; empty where it is not there or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
