"""The actor-train process."""

from stages.actor_train.stage import ActorTrain
from stages.blobs.model import model_at_hand
from stages.service.main import run

if __name__ == "__main__":
    run(ActorTrain(), prepare=model_at_hand)
