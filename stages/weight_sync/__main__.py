"""The weight-sync process."""

from stages.service.main import run
from stages.weight_sync.stage import WeightSync

if __name__ == "__main__":
    run(WeightSync())
