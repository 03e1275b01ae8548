"""How a replica reads a version and proves that it uses it; a Protocol, so that the stage itself needs no torch.

read ─► digests equal the order's? ─► engine.install ─► digest of the tensors in use ─► receipt
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from schemas.errors import EngineError
from schemas.records import Install
from stages.model.tensor_file import manifest_digest
from stages.rollout.engine import Engine

State = Mapping[str, Any]
"""Tensors by name; what kind of tensor is between an engine and its weights."""


class InstallRefusedError(EngineError):
    """A version was not taken into use; the replica goes on with the one it has."""


class Weights(Protocol):
    """One engine's weights."""

    def read(self, location: str) -> State:
        """All tensors of a version's directory. Raises ModelError."""

    def digests(self, state: State) -> dict[str, str]:
        """The digest of each tensor, by name, as the trainer computes it: xxh3-64 hex."""

    def digest_in_use(self, state: State) -> str:
        """The digest recomputed from the engine's own tensors.

        Where the engine holds another number format, each tensor is compared with `state` cast to it, and the digest is
        `state`'s. Raises InstallRefusedError where they differ.
        """


class Replica(Struct, frozen=True):
    """An engine and its weights, made together."""

    engine: Engine
    weights: Weights


def install(replica: Replica, order: Install) -> str:
    """Takes a version into use between two decode steps; returns the digest of the tensors then in use.

    Nothing changes unless what was read hashes to what was ordered. Raises InstallRefusedError, ModelError.
    """
    if manifest_digest(order.tensors) != order.digest:
        raise InstallRefusedError(f"version {order.number}: the order's digest is not that of its own tensors")
    state = replica.weights.read(order.location)
    _check(replica.weights.digests(state), order)
    replica.engine.install(order.number, state)
    digest = replica.weights.digest_in_use(state)
    if digest != order.digest:
        raise InstallRefusedError(f"version {order.number}: the tensors in use hash to {digest}, not {order.digest}")
    return digest


def _check(found: Mapping[str, str], order: Install) -> None:
    wanted = {info.name: info.digest for info in order.tensors}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise InstallRefusedError(
            f"version {order.number}: {order.location} does not hash to {order.digest}: {len(wrong)} tensors differ, {wrong[0]} among them"
        )
