"""The reference process."""

from stages.blobs.model import model_at_hand
from stages.reference.stage import Reference
from stages.service.main import run

if __name__ == "__main__":
    run(Reference(), prepare=model_at_hand)
