"""Recorded runs to look into, made by the small world: the broker's real core, its real journal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from broker.journal import Journal
from broker.journal.reading import Scan
from schemas.lock import lock_text
from tests.tools.sim.scenarios import a_scenario
from tools.sim.driver import Entry
from tools.sim.scenario import Scenario
from tools.sim.world import World

HOUSE = Path(__file__).resolve().parents[3]


def entries_of(scenario: Scenario | None = None) -> list[Entry]:
    """All that a run recorded."""
    world = World(scenario or small(), keep=True)
    world.run()
    assert world.driver.entries is not None
    return world.driver.entries


def small(seed: int = 0, **schedule: Any) -> Scenario:
    """Two steps of two groups of two."""
    return a_scenario(seed, **{"steps": 2, "groups_per_step": 2, "members": 2, **schedule})


def write_run(directory: Path, entries: list[Entry], *, segment_bytes: int = 1 << 28, commit_every: int = 20) -> Path:
    """A run directory whose journal holds these entries."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"run": {"name": directory.name}}))
    (directory / "schema.lock").write_text(lock_text())
    append(directory, entries, segment_bytes=segment_bytes, commit_every=commit_every)
    return directory


def append(directory: Path, entries: list[Entry], *, segment_bytes: int = 1 << 28, commit_every: int = 20) -> None:
    """Another life of the broker adds these."""
    journal = Journal(directory / "journal", segment_bytes)
    try:
        for _ in journal.read():
            pass
        for place, entry in enumerate(entries):
            journal.append(entry.event, entry.now, tuple(map(bytes, entry.frames)))
            if place % commit_every == 0:
                journal.commit()
    finally:
        journal.close()


def whole_entries(directory: Path) -> int:
    """Entries in a journal."""
    return sum(1 for _ in Scan(directory / "journal", expected=0, want_frames=False))


def tidemill(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    command = [sys.executable, str(HOUSE / "tools" / "__main__.py"), *arguments]
    return subprocess.run(command, cwd=cwd or HOUSE, capture_output=True, text=True, check=False, timeout=120)
