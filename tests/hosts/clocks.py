"""Clocks that disagree, per process: what it reads as the time of day is shifted, its intervals are not. See `clock_off.c`."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_off.c")


def compiler() -> str:
    """A C compiler, empty where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or ""


@dataclass(frozen=True)
class Clocks:
    """`library` lies outside every host; each gets a copy of its own."""

    library: Path

    def off_by(self, seconds: int, world: Path) -> dict[str, str]:
        """The environment of a process on the host with this `world` whose clock is so far ahead (or, below 0, behind)."""
        shutil.copyfile(self.library, world / self.library.name)
        return {"LD_PRELOAD": f"/tmp/{self.library.name}", "CLOCK_OFF_S": str(seconds)}


def compile_clocks(folder: Path) -> Clocks:
    """Compiles the library into `folder`."""
    library = folder / "clock_off.so"
    subprocess.run((compiler(), "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"), check=True, capture_output=True)
    return Clocks(library)
