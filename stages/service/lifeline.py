"""A stage's line to its host (`broker.lifeline`), tied before the stage's imports begin.

`python -m stages.service.lifeline MODULE ARGUMENTS` runs a module as `python -m MODULE ARGUMENTS` would. Importing
torch takes seconds, and a host that is killed meanwhile must leave nothing behind.
"""

from __future__ import annotations

import runpy
import sys

from broker.lifeline import EXIT_ORPHANED, PARENT, child_environment, die_with_parent

__all__ = ["EXIT_ORPHANED", "PARENT", "child_environment", "die_with_parent"]

if __name__ == "__main__":
    die_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
