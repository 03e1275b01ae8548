"""One stage of the skeleton as a process: `python -m tests.skeleton ROLE --broker ENDPOINT --name NAME`."""

from __future__ import annotations

import sys

from schemas.edges import Role
from stages.service.main import run
from tests.skeleton.stages import FAKES

if __name__ == "__main__":
    run(FAKES[Role(sys.argv.pop(1))]())
