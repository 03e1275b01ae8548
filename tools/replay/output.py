"""The file of `replay --output`: a line for each answer. Where it cannot be written, the replay ends before it costs anything."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from schemas.errors import ConfigError


def check_output(path: Path) -> None:
    """What is there stays as it is. Raises ConfigError where no file can be written."""
    is_there = path.exists()
    if is_there and not (path.is_file() or path.is_dir()):
        return  # a pipe: to open it would tell its reader that somebody has come, and gone
    try:
        path.open("ab").close()
        if not is_there:
            path.unlink()
    except OSError as error:
        raise _unusable(path, error) from error


class Output:
    """Takes lines; none where there is no `path`. Every line is out at once, so that a full disk ends the replay at the next answer."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError, as `write` does."""
        self._path = path
        try:
            self._file = path.open("wb", buffering=0) if path is not None else None
        except OSError as error:
            raise _unusable(path, error) from error

    def write(self, line: bytes) -> None:
        left = memoryview(line + b"\n")
        try:
            while self._file is not None and left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise _unusable(self._path, error) from error

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


def _unusable(path: Path | None, error: OSError) -> ConfigError:
    return ConfigError(f"--output {path}: {error.strerror}; the answers cannot be written there")
