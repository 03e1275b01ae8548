"""What keeps a replay from beginning, or from going on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from schemas.errors import TidemillError, WireError


class ReplayError(TidemillError):
    """A recording that cannot be played as asked."""


class VersionGone(ReplayError):
    """Weights that the recording needs were deleted since; the text begins with `version_gone` and names them."""


@contextmanager
def another_schema(what: str) -> Iterator[None]:
    """Around the reading of a record that was perhaps written under another `schema.lock`. Raises ReplayError where that fails."""
    try:
        yield
    except (WireError, KeyError) as error:
        raise ReplayError(
            f"{what} was written under another schema.lock, and this version cannot read it ({error}); replay the run with the version that"
            " recorded it"
        ) from error
