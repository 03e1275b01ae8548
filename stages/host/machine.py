"""What this machine has: the cores that this process may use, the GPUs that it may see."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
TOOL_S = 30.0
"""A driver that is not awake yet takes seconds to answer."""


def cores() -> list[int]:
    """Numbers, in order."""
    return sorted(os.sched_getaffinity(0))


def gpus() -> list[int]:
    """Their numbers among those that are visible, from 0."""
    return list(range(len(_visible())))


def visible_for(slots: Sequence[int]) -> dict[str, str]:
    """The environment in which a process sees only these GPUs."""
    names = _visible()
    return {VISIBLE: ",".join(names[number] if number < len(names) else str(number) for number in slots)} if slots else {}


def _visible() -> list[str]:
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    return _devices() or list(_told_by_driver())


def _devices() -> list[str]:
    return sorted((match[1] for file in Path("/dev").glob("nvidia*") if (match := re.fullmatch(r"nvidia(\d+)", file.name))), key=int)


@functools.cache
def _told_by_driver() -> tuple[str, ...]:
    """Where GPUs have no device files of their own, as under WSL, the driver's own tool knows them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        told = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=TOOL_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(re.findall(r"^GPU (\d+):", told, re.MULTILINE))
