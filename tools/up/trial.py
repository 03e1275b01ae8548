"""One trial of user code, in a process of its own: `python -P -m tools.up.trial KEY`, the resolved config on stdin.

Does what the stage does before its first record. Says on stdout, where user code cannot write, `loaded` or what is wrong.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from broker.lifeline import die_with_parent
from schemas.config import PipelineConfig
from schemas.errors import ConfigError, EnvironmentFailure, TidemillError
from schemas.header import Purpose

if TYPE_CHECKING:
    from stages.env.environment import LoadedEnvironment


def load_environment(config: PipelineConfig) -> None:
    """The environment, its options, the tokens that end its turns, a task of each purpose. Raises ConfigError."""
    from stages.env.settings import open_environment
    from stages.env.vocabulary import Vocabulary

    vocabulary = Vocabulary.open(config.model.path)
    opened = open_environment(config.stages.env)
    vocabulary.stop_tokens(opened.stop_text)
    draw_tasks(config, opened.environment)


def draw_tasks(config: PipelineConfig, environment: LoadedEnvironment) -> None:
    """The first task of each purpose that the run plays, as a session draws it: what fails here fails every ticket. Raises ConfigError."""
    from stages.env.user_code import UserCode

    settings = config.stages.env
    purposes: tuple[Purpose, ...] = ("train", "eval") if config.evaluation.at_start or config.evaluation.at_end else ("train",)
    for purpose in purposes:
        try:
            UserCode(environment, settings.options, settings.turn_deadline_s).open(0, purpose, config.run.seed, 0)
        except EnvironmentFailure as error:
            called = f"task(0, {purpose!r}, {config.run.seed})"
            raise ConfigError(f"{environment.path}: a session cannot play what {called} gives: {error}") from error


def load_verifier(config: PipelineConfig) -> None:
    """The verifier, and the weights of its parts. Raises ConfigError."""
    from stages.reward import verifier

    settings = config.stages.reward
    sys.path.extend(folder for folder in settings.path if folder not in sys.path)
    verifier.load_verifier(settings.verifier).check_weights(settings.weights)


LOADED = "loaded"
ENVIRONMENT, VERIFIER = "stages.env.environment", "stages.reward.verifier"
LOADERS = {ENVIRONMENT: load_environment, VERIFIER: load_verifier}


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
