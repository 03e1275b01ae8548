"""What keeps a replay from beginning, or from going on."""

from __future__ import annotations

from schemas.errors import TidemillError


class ReplayError(TidemillError):
    """A recording that cannot be played as asked."""


class VersionGone(ReplayError):
    """Weights that the recording needs were deleted since; the text begins with `version_gone` and names them."""
