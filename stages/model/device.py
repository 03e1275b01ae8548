"""Whether a torch device that the configuration names is there."""

from __future__ import annotations

import torch

from schemas.errors import ConfigError


def usable(device: torch.device | str) -> torch.device:
    """The device; raises ConfigError where torch sees no such one on this machine."""
    wanted = torch.device(device)
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'device = "{wanted}": torch sees {torch.cuda.device_count()} CUDA devices on this machine; '
            'set the `device` of this stage to one it sees, or to "cpu"'
        )
    return wanted
