"""The skeleton's policy: a token is a function of the session's seed and its position, so any replica says the same."""

from __future__ import annotations

import numpy as np

from schemas.records import Action, Array, VersionSpan, no_tokens

TOKENS = 3
"""Length of every action."""
STOP = 1


def say(seed: int, start: int, version: int) -> Action:
    """The action that begins at position `start`, sampled by `version`."""
    drawn = [2 + (seed + position) % 97 for position in range(start, start + TOKENS - 1)]
    return Action(
        finish_reason="stop",
        sample_spans=(VersionSpan(start, start + TOKENS, version),),
        kv_spans=(VersionSpan(0, start + TOKENS, version),),
        tokens=np.array([*drawn, STOP], np.int32),
        logprobs=np.full(TOKENS, -0.5, np.float32),
        kept_ids=no_tokens(),
        kept_counts=no_tokens(),
    )


def observe(task_index: int, turn: int) -> Array:
    """What the environment says before a turn: two tokens."""
    return np.array([100 + task_index % 50, 200 + turn], np.int32)


def turns_of(task_index: int) -> int:
    """How many turns an episode of the task has."""
    return 1 + task_index % 3


def reward_of(task_index: int, member: int) -> float:
    """Differs between members, but for every fifth task: its groups have no spread."""
    return 1.0 if task_index % 5 == 4 else float(member % 2)
