"""Where the broker listens: a private socket of this run, or what the configuration names, checked before anything
starts.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from schemas.errors import ConfigError

SOCKET_PATH_BYTES_MAX = 107
"""A Unix socket's path has 108 bytes with its closing zero."""
LONGEST_NAME = len("/tidemill-12345678/broker")


@contextmanager
def broker_endpoint(configured: str) -> Iterator[str]:
    """The endpoint to use; an empty `configured` makes a private folder for it, removed at the end.

    Raises ConfigError where the endpoint is in use or its folder is missing.
    """
    if configured:
        check_free(configured)
        yield configured
        return
    folder = Path(tempfile.mkdtemp(prefix="tidemill-", dir=_short_place()))  # mode 0700: nobody else may connect
    try:
        yield f"ipc://{folder}/broker"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _short_place() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    fits = len(runtime.encode()) + LONGEST_NAME <= SOCKET_PATH_BYTES_MAX
    return runtime if runtime and fits and os.access(runtime, os.W_OK | os.X_OK) else "/tmp"


def reachable(endpoint: str) -> str:
    """Where this machine's own processes find a broker that listens at `endpoint`."""
    for everywhere, here in (("tcp://*:", "tcp://127.0.0.1:"), ("tcp://0.0.0.0:", "tcp://127.0.0.1:"), ("tcp://[::]:", "tcp://[::1]:")):
        if endpoint.startswith(everywhere):
            return here + endpoint.removeprefix(everywhere)
    return endpoint


def check_free(endpoint: str) -> None:
    """Raises ConfigError where nobody could listen at `endpoint`."""
    if endpoint.startswith("ipc://"):
        _check_path(Path(endpoint.removeprefix("ipc://")))
        return
    parts = urlsplit(endpoint)
    host, port = str(parts.hostname).replace("*", ""), int(parts.port or 0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker's socket does
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigError(
                f'broker.endpoint = {endpoint!r}: cannot be listened at ({error.strerror}); choose another port, or "" for a private socket'
            ) from None


def check_metrics_port(address: str, port: int) -> None:
    """Raises ConfigError where the broker could not show its metrics; 0 means that it shows none."""
    if not port:
        return
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigError(
                f"broker.metrics_port = {port}: {address} cannot be listened at ({error.strerror}); choose another port, or 0 for none"
            ) from None


def _check_path(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"broker.endpoint = 'ipc://{path}': no such folder as {path.parent}; make it first")
    if os.path.lexists(path) and not path.is_socket():
        raise ConfigError(f"broker.endpoint = 'ipc://{path}': that is there already and is no socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return  # nothing there, or what a dead process left behind
        except OSError as error:
            raise ConfigError(f"broker.endpoint = 'ipc://{path}': cannot be listened at ({error.strerror})") from None
    raise ConfigError(f"broker.endpoint = 'ipc://{path}': another process listens there; choose another path")
