"""`tidemill keys new|list|revoke`: says what was done, and what to do with it. Never prints a secret."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker.keys import KEY_VARIABLE, SERVER_KEY_VARIABLE, KeyDirectory, default_directory
from schemas.edges import Role


def new(name: str, roles: Sequence[Role], directory: Path | None) -> None:
    """Makes a pair and allows it."""
    keys = _directory(directory)
    allowed = keys.new(name, tuple(dict.fromkeys(roles)) or tuple(Role))
    print(f"key {name} may be: {', '.join(allowed.roles)}")
    print(f"secret   {keys.client_file(name)}   move it to {name}'s machine, mode 0600")
    print(f"server   {keys.path / 'server.pub'}   copy it there too")
    print(f"there    export {KEY_VARIABLE}={name}.key {SERVER_KEY_VARIABLE}=server.pub   (or --key and --server-key)")


def show(directory: Path | None) -> None:
    """Prints the allow-list, and what is wrong with it."""
    keys = _directory(directory)
    entries, wrong = keys.allowed()
    for entry in entries:
        print(f"{entry.name}  {entry.public}  {', '.join(entry.roles)}")
    for problem in wrong:
        print(f"not allowed: {problem}")
    if not entries and not wrong:
        print(f"no keys in {keys.path}; make one: tidemill keys new NAME")


def revoke(name: str, directory: Path | None) -> None:
    """Takes a key off the allow-list."""
    _directory(directory).revoke(name)
    print(f"key {name} is revoked: brokers refuse it at once, and end its sessions within seconds")


def _directory(given: Path | None) -> KeyDirectory:
    return KeyDirectory(given.expanduser() if given is not None else default_directory())
