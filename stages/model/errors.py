"""Errors of the model package: each says what is wrong, in which file, and what to do. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.errors import ModelError

NAMES_SHOWN = 6
"""How many tensor names an error spells out; a wrong architecture differs in hundreds."""


class UnsupportedModelError(ModelError):
    """The config describes an architecture, or a variant of it, that this decoder does not compute."""


class CheckpointError(ModelError):
    """A checkpoint directory that is incomplete, unreadable or in the way."""


class TensorMismatchError(CheckpointError):
    """Tensors that are missing, not expected, or of another shape than the config says.

    `missing` and `unexpected` are sorted names; `misshapen` holds sentences such as "x is [2, 3], expected [2, 4]".
    """

    def __init__(self, where: str, missing: Iterable[str] = (), unexpected: Iterable[str] = (), misshapen: Iterable[str] = ()) -> None:
        self.where = where
        self.missing, self.unexpected, self.misshapen = sorted(missing), sorted(unexpected), sorted(misshapen)
        found = (("missing", self.missing), ("not expected", self.unexpected), ("wrong shape", self.misshapen))
        parts = [f"{what}: {_few(names)}" for what, names in found if names]
        super().__init__(f"{where}: tensors do not fit the config ({'; '.join(parts)}); check that both belong together")


def _few(names: list[str]) -> str:
    rest = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
