"""The actor-train process."""

from stages.actor_train.stage import ActorTrain
from stages.service.main import run

if __name__ == "__main__":
    run(ActorTrain())
