"""The reward process."""

from stages.blobs.model import tokenizer_at_hand
from stages.reward.stage import Reward
from stages.service.main import run

if __name__ == "__main__":
    run(Reward(), prepare=tokenizer_at_hand)
