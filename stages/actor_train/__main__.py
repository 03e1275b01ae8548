"""The actor-train process."""

import sys

from stages.actor_train.stage import ActorTrain
from stages.service.main import run

if __name__ == "__main__":
    sys.exit(run(ActorTrain()))
