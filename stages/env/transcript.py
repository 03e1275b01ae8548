"""What one session has said so far, token by token; turns and the episode are cut from it.

    tokens     | env env env | policy policy | env env | policy ...
    loss_mask  |  0   0   0  |   1      1    |  0   0  |   1
    turns      [start .... action ......... end) [start .. action

Owns: tokens, mask, log-probs, spans, turn bounds. Promises: what was appended never changes (each turn's context is a prefix
of the next), the mask is 1 exactly on tokens that the policy sampled, the length never passes `most_tokens`.
Does not know text, time, environments or queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from schemas.errors import InvariantError, WireError
from schemas.records import Action, Array, Episode, Sampling, Turn, TurnBounds, VersionSpan, no_logprobs, no_tokens


@dataclass(frozen=True)
class Ending:
    """What an episode holds besides the transcript."""

    task: dict[str, Any]
    outcome: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0


class Transcript:
    """One session's tokens. `length` counts them; `room` is what may still be appended."""

    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens
        self.length = 0
        self.sampled = 0
        self._pieces: list[tuple[Array, Array | None]] = []
        self._bounds: list[TurnBounds] = []
        self._start = 0
        self._actions: list[Action] = []
        self._hash = xxhash.xxh3_64()

    @property
    def room(self) -> int:
        return self._most - self.length

    @property
    def turns(self) -> int:
        """Turns that the policy has answered."""
        return len(self._actions)

    def ask(self, tokens: Array, sampling: Sampling, seed: int) -> Turn:
        """Appends an observation and makes the turn that answers it; at least one token of room must remain after it."""
        if tokens.size >= self.room:
            raise InvariantError(f"an observation of {tokens.size} tokens was appended with room for {self.room}")
        digest = self._hash.intdigest()
        self.append(tokens)
        bounded = Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_new_tokens=min(sampling.max_new_tokens, self.room),
            stop_tokens=sampling.stop_tokens,
        )
        return Turn(context_digest=digest, sampling=bounded, seed=seed, tokens=tokens)

    def append(self, tokens: Array) -> None:
        """Appends what the environment said."""
        self._grow(tokens, None)

    def answer(self, action: Action) -> None:
        """Appends what the policy sampled. Raises WireError where the action does not fit the session or itself."""
        self._check(action)
        self._bounds.append(TurnBounds(self._start, self.length, self.length + action.tokens.size))
        self._actions.append(action)
        self._grow(action.tokens, action.logprobs)
        self.sampled += action.tokens.size
        self._start = self.length

    def episode(self, ending: Ending) -> Episode:
        """The whole session. An observation that was never answered stays, as a turn with an empty action."""
        bounds = list(self._bounds)
        if self._start < self.length:
            bounds.append(TurnBounds(self._start, self.length, self.length))
        return Episode(
            task=ending.task,
            outcome=ending.outcome,
            turns=tuple(bounds),
            sample_spans=tuple(span for action in self._actions for span in action.sample_spans),
            kv_spans=self._actions[-1].kv_spans if self._actions else (),
            truncated=ending.truncated,
            near_ties=sum(action.near_ties for action in self._actions),
            environment_seconds=ending.environment_seconds,
            policy_seconds=ending.policy_seconds,
            **self._arrays(),
        )

    def _arrays(self) -> dict[str, Array]:
        tokens = _joined([piece for piece, _ in self._pieces], np.int32)
        mask = _joined([np.full(piece.size, said is not None, np.uint8) for piece, said in self._pieces], np.uint8)
        logprobs = _joined([np.zeros(piece.size, np.float32) if said is None else said for piece, said in self._pieces], np.float32)
        if not tokens.size == mask.size == logprobs.size == self.length or int(mask.sum()) != self.sampled:
            raise InvariantError(f"episode of {self.length} tokens: mask and log-probs do not cover it")
        return {
            "tokens": tokens,
            "loss_mask": mask,
            "logprobs": logprobs,
            "kept_ids": _joined([action.kept_ids for action in self._actions], np.int32),
            "kept_counts": _joined([action.kept_counts for action in self._actions], np.int32),
        }

    def _grow(self, tokens: Array, logprobs: Array | None) -> None:
        self._pieces.append((tokens, logprobs))
        self._hash.update(np.ascontiguousarray(tokens).data.cast("B") if tokens.size else b"")
        self.length += int(tokens.size)

    def _check(self, action: Action) -> None:
        size = int(action.tokens.size)
        if not 0 < size <= self.room:
            raise WireError(f"an action of {size} tokens, where 1 to {self.room} were asked for")
        if action.logprobs.size != size or action.kept_counts.size not in (0, size):
            raise WireError(f"an action of {size} tokens with {action.logprobs.size} log-probs")
        if int(action.kept_counts.sum()) != action.kept_ids.size:
            raise WireError(f"an action whose kept counts do not add up to its {action.kept_ids.size} kept ids")
        if not covers(action.sample_spans, self.length, self.length + size):
            raise WireError(f"an action whose spans do not cover [{self.length}, {self.length + size})")


def covers(spans: Sequence[VersionSpan], start: int, end: int) -> bool:
    """True where `spans`, in order and without gaps, are exactly [start, end)."""
    for span in spans:
        if span.start != start or span.end <= start:
            return False
        start = span.end
    return start == end


def versions_of(spans: Iterable[VersionSpan]) -> dict[str, int]:
    """Header fields of the oldest and newest version in `spans`; none where there are no spans."""
    versions = [span.version for span in spans]
    return {"oldest_version": min(versions), "newest_version": max(versions)} if versions else {}


def _joined(parts: list[Array], dtype: type[np.generic]) -> Array:
    if not parts:
        return no_logprobs() if dtype is np.float32 else no_tokens().astype(dtype)
    return np.concatenate(parts).astype(dtype, copy=False)
