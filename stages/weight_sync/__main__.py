"""The weight-sync process."""

import sys

from stages.weight_sync.stage import WeightSync
from stages.service.main import run

if __name__ == "__main__":
    sys.exit(run(WeightSync()))
