"""Whether a version's files are what its record says, read from their raw bytes without torch."""

from __future__ import annotations

from pathlib import Path

from schemas.records import TensorInfo, Version
from stages.model.errors import CheckpointError
from stages.model.tensor_file import directory_tensors, manifest_digest

NAMES_SHOWN = 4


class WeightsMismatchError(CheckpointError):
    """Files that do not hold the tensors of the version's record."""


def verify(version: Version) -> None:
    """Raises CheckpointError (missing, damaged) or WeightsMismatchError naming the tensors that differ."""
    place = Path(version.location)
    if not place.is_dir():
        raise CheckpointError(f"{place} is not on this machine; start weight-sync where actor-train's files are, beside the broker")
    if not (place / "config.json").is_file():
        raise CheckpointError(f"{place} has no config.json")
    found = directory_tensors(place)
    _compare(found, version)
    digest = manifest_digest(found)
    if digest != version.digest:
        raise WeightsMismatchError(f"{place} hashes to {digest}, its record says {version.digest}, though all tensors agree")


def _compare(found: tuple[TensorInfo, ...], version: Version) -> None:
    here = {info.name: info for info in found}
    promised = {info.name: info for info in version.tensors}
    differing = sorted(name for name in here.keys() | promised.keys() if here.get(name) != promised.get(name))
    if differing:
        shown = ", ".join(differing[:NAMES_SHOWN]) + (" ..." if len(differing) > NAMES_SHOWN else "")
        raise WeightsMismatchError(f"{version.location}: {len(differing)} tensors are not the record's: {shown}")
