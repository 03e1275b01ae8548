"""An older version of the house: a copy whose records have other fields, and runs that its own code recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tools.records.recorded import HOUSE

PARTS = ("schemas", "broker", "stages", "tools", "compose", "tests")
RENAMED = ("reward_parts", "parts_of_reward")
"""Of scored and sample: now and then."""
DROPPED = "    near_ties: int = 0\n    environment_seconds"
"""Of an episode: before these it had another field, `weather`."""
WRITE_RUN = "import sys; from pathlib import Path; from tests.tools.records.recorded import *; write_run(Path(sys.argv[1]), entries_of())"


def older_house(folder: Path) -> Path:
    """Copies the house and makes it older: one field of a record is called otherwise, one is there that is gone now."""
    for part in PARTS:
        shutil.copytree(HOUSE / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "runs", "*.safetensors.partial"))
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if RENAMED[0] in text:
            path.write_text(text.replace(*RENAMED), encoding="utf-8")
    records = folder / "schemas" / "records.py"
    text = records.read_text(encoding="utf-8")
    older = text.replace(DROPPED, '    weather: str = "fine"\n' + DROPPED)
    assert older != text, "the record is not what this test knows"
    records.write_text(older, encoding="utf-8")
    python(folder, "-m", "schemas.lock")
    return folder


def python(house: Path, *arguments: str, cwd: Path | None = None, timeout: float = 120) -> str:
    """Runs the older code; returns what it printed."""
    command = [sys.executable, "-P", *arguments]
    environment = os.environ | {"PYTHONPATH": str(house), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=cwd or house, env=environment, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def older_run(house: Path, run: Path) -> Path:
    """A run of the small world, recorded by the older code."""
    python(house, "-c", WRITE_RUN, str(run))
    return run
