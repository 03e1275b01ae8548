"""The rollout process."""

from stages.rollout.stage import Rollout
from stages.service.main import run

if __name__ == "__main__":
    run(Rollout())
