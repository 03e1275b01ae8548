"""The env process."""

from stages.env.stage import Env
from stages.service.main import run

if __name__ == "__main__":
    run(Env())
