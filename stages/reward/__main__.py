"""The reward process."""

from stages.reward.stage import Reward
from stages.service.main import run

if __name__ == "__main__":
    run(Reward())
