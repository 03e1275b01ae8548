"""Becomes another program that does not outlive the process that started it: `python -m tools.bench.leash PROGRAM ARGUMENT...`.

The parent-death signal survives exec, so programs that know nothing of it are bound all the same.
"""

from __future__ import annotations

import os
import sys

from broker.lifeline import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
