"""`tidemill`, and `python -m tools`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
PACKAGES = ("schemas", "broker", "stages", "tools")


def shadowed() -> list[str]:
    """Complaints about packages of ours that Python would take from elsewhere."""
    complaints = []
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        places = [Path(place).resolve() for place in (found.submodule_search_locations or ())] if found else []
        if HOUSE / package not in places[:1]:
            where = places[0] if places else "nowhere"
            complaints.append(f"package {package!r} would come from {where}, not from {HOUSE}: take that off Python's path")
    return complaints


def main() -> None:
    """The console command `tidemill`."""
    complaints = shadowed()
    if complaints:
        print(*(f"tidemill: {complaint}" for complaint in complaints), sep="\n", file=sys.stderr)
        sys.exit(2)
    from tools.command import main as run

    run()


if __name__ == "__main__":
    main()
