"""The env process."""

from stages.blobs.model import tokenizer_at_hand
from stages.env.stage import Env
from stages.service.main import run

if __name__ == "__main__":
    run(Env(), prepare=tokenizer_at_hand)
