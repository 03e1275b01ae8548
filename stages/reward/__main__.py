"""The reward process."""

import sys

from stages.reward.stage import Reward
from stages.service.main import run

if __name__ == "__main__":
    sys.exit(run(Reward()))
