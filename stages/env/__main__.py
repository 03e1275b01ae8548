"""The env process."""

import sys

from stages.env.stage import Env
from stages.service.main import run

if __name__ == "__main__":
    sys.exit(run(Env()))
