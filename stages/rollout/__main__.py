"""The rollout process."""

from stages.blobs.model import model_at_hand
from stages.rollout.stage import Rollout
from stages.service.main import run

if __name__ == "__main__":
    run(Rollout(), prepare=model_at_hand)
