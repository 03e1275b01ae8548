"""Which tickets a step trained, read from the recorded plans."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import ConfigError
from schemas.messages import Plan
from tools.replay.recording import Recording


def tickets_of_step(journal: Path, step: int) -> frozenset[int]:
    """Raises ConfigError where no plan of that step was recorded."""
    for moment in Recording(journal).moments():
        for order in moment.orders:
            if isinstance(order.message, Plan) and order.message.step == step:
                return frozenset(header.ticket for header in order.message.samples if header.ticket is not None)
    raise ConfigError(f"--only step:{step}: no plan of that step was recorded")
