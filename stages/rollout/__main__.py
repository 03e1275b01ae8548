"""The rollout process."""

import sys

from stages.rollout.stage import Rollout
from stages.service.main import run

if __name__ == "__main__":
    sys.exit(run(Rollout()))
