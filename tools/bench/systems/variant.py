"""The real broker with one thing changed, for the benchmark alone: `python -m tools.bench.systems.variant` with one of these first.

`--no-journal`: events go nowhere; not encoded, summed, written or synced. What that broker acknowledges is in memory only: it shows what
durability costs and is of no other use. `--samples FILE`: on SIGUSR2 writes where the processor time went and ends.
All other arguments are those of `python -m broker`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import broker.__main__ as program


def main() -> int:
    """Returns the broker's exit code."""
    if "--no-journal" in sys.argv:
        sys.argv.remove("--no-journal")
        from tools.bench.systems.nowhere import without_journal

        without_journal()
    if "--samples" in sys.argv:
        at = sys.argv.index("--samples")
        target = Path(sys.argv[at + 1])
        del sys.argv[at : at + 2]
        from tools.bench.sampling import sample_until_asked

        sample_until_asked(target)
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
