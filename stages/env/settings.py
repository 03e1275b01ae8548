"""What the config says to the env stage: which environment, how its sessions are bounded, how their turns are sampled."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from schemas.config import EnvConfig, PipelineConfig
from schemas.errors import ConfigError
from schemas.header import Purpose
from schemas.records import Sampling
from stages.env.environment import LoadedEnvironment, load_environment
from stages.env.session import Rules

STOP_TEXT = "\n"
"""What ends a turn where an environment does not say: every line of the policy is one turn."""


@dataclass(frozen=True)
class OpenedEnvironment:
    """An environment, and the text after which a turn of the policy ends (None: only the end-of-text token ends it)."""

    environment: LoadedEnvironment
    stop_text: str | None


def open_environment(settings: EnvConfig) -> OpenedEnvironment:
    """Imports the configured environment and tries its options. Raises ConfigError.

    The user's folders go to the end of Python's path: they cannot shadow what is installed.
    """
    sys.path.extend(folder for folder in settings.path if folder not in sys.path)
    loaded = load_environment(settings.environment)
    loaded.check_options(settings.options)
    stop_text = getattr(loaded.kind, "stop_text", STOP_TEXT)
    if stop_text is not None and not (isinstance(stop_text, str) and stop_text):
        raise ConfigError(f"{loaded.path}.stop_text is {stop_text!r}; it is a text of at least one character, or None")
    return OpenedEnvironment(loaded, stop_text)


def session_rules(settings: EnvConfig) -> Rules:
    """The limits of every session."""
    return Rules(settings.max_turns, settings.max_episode_tokens, settings.turn_deadline_s, settings.episode_deadline_s)


def purpose_sampling(config: PipelineConfig, purpose: Purpose, stop_tokens: tuple[int, ...]) -> Sampling:
    """How turns of a purpose are sampled: eval has its own temperature, the rest is `[sampling]`'s."""
    sampling = config.sampling
    return Sampling(
        temperature=config.evaluation.temperature if purpose == "eval" else sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_turn_tokens,
        stop_tokens=stop_tokens,
    )
