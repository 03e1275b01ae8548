"""The reference process."""

from stages.reference.stage import Reference
from stages.service.main import run

if __name__ == "__main__":
    run(Reference())
