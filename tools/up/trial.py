"""One trial of user code, in a process of its own: `python -P -m tools.up.trial KEY`, the resolved config on stdin.

Does what the stage does before its first record. Says on stdout, where user code cannot write, `loaded` or what is wrong.
"""

from __future__ import annotations

import os
import sys

from broker.lifeline import die_with_parent
from schemas.config import PipelineConfig
from schemas.errors import TidemillError


def load_environment(config: PipelineConfig) -> None:
    """The environment, its options, and the tokens that end its turns. Raises ConfigError."""
    from stages.env.settings import open_environment
    from stages.env.vocabulary import Vocabulary

    vocabulary = Vocabulary.open(config.model.path)
    vocabulary.stop_tokens(open_environment(config.stages.env).stop_text)


def load_verifier(config: PipelineConfig) -> None:
    """The verifier. Raises ConfigError."""
    from stages.reward import verifier

    settings = config.stages.reward
    sys.path.extend(folder for folder in settings.path if folder not in sys.path)
    verifier.load_verifier(settings.verifier)


LOADED = "loaded"
LOADERS = {"stages.env.environment": load_environment, "stages.reward.verifier": load_verifier}


def main() -> None:
    """Ends the process, without the goodbyes of threads that user code may have started."""
    die_with_parent()
    config = PipelineConfig.model_validate_json(sys.stdin.read())
    answer = os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    try:
        LOADERS[sys.argv[1]](config)
        said = LOADED
    except TidemillError as error:
        said = str(error)
    os.write(answer, said.encode())
    os._exit(0)


if __name__ == "__main__":
    main()
