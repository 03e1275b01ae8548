"""The keys of the processes on the broker's own machine: those given by the environment, else the key `local`.

Decides as the broker does whether keys are asked for, so that both ends agree.
"""

from __future__ import annotations

import os
from pathlib import Path

from broker.keys import KEY_VARIABLE, LOCAL, SERVER_KEY_VARIABLE, ClientKeys, KeyDirectory, client_keys, directory_for
from schemas.edges import Role


def local_keys(endpoint: str, configured: str, *, make: bool = False) -> ClientKeys | None:
    """Keys to reach a broker at `endpoint` whose `broker.keys` is `configured`; `make`: the key `local` where there is none.

    Raises ConfigError where keys are asked for and cannot be had.
    """
    keys = directory_for(endpoint, configured)
    if keys is None:
        return None
    if make and not os.environ.get(KEY_VARIABLE, ""):
        _make(keys)
    return client_keys(str(_key_file(keys)), _server_key(keys))


def hand_down(endpoint: str, configured: str) -> ClientKeys | None:
    """`local_keys`, and children find the same in their environment: files, not secrets. None takes away what stands there."""
    found = local_keys(endpoint, configured, make=True)
    keys = directory_for(endpoint, configured)
    if found is None or keys is None:
        for variable in (KEY_VARIABLE, SERVER_KEY_VARIABLE):
            os.environ.pop(variable, None)
        return None
    os.environ.update({KEY_VARIABLE: str(_key_file(keys).absolute()), SERVER_KEY_VARIABLE: found.server})
    return found


def _make(keys: KeyDirectory) -> None:
    if not keys.client_file(LOCAL).exists():
        keys.new(LOCAL, tuple(Role))


def _key_file(keys: KeyDirectory) -> Path:
    return Path(os.environ.get(KEY_VARIABLE, "") or keys.client_file(LOCAL)).expanduser()


def _server_key(keys: KeyDirectory) -> str:
    return os.environ.get(SERVER_KEY_VARIABLE, "") or keys.server().public
