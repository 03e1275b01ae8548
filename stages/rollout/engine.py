"""What every rollout engine can do, and the records that go in and out. Token in, token out: nothing is re-tokenised.

An engine holds *sessions* (their token ids until `close_session`, their KV while there is room) and *turns* (at most
one a session at a time). The one who drives it calls `step()` for as long as there is work; between two steps nothing
moves, so `install`, `abort` and `submit` need no lock. Knows no sockets, queues, leases or texts. Importing this file
imports no torch.

    submit ──► waiting ──room──► running ──stop or length──► TurnResult
                  └───────────────┴── abort: the session goes back to its `held` tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import Struct

from schemas.errors import EngineError
from schemas.records import VersionSpan

if TYPE_CHECKING:
    from torch import Tensor

SessionKey = tuple[int, int]
"""(ticket, attempt)"""


class TurnRefusedError(EngineError):
    """This turn cannot be played as asked; the engine is unchanged. The text says why."""


class SessionMismatchError(TurnRefusedError):
    """The caller believes that the engine holds more of the session than it does: send the tokens from `holds` on."""

    def __init__(self, session: SessionKey, believed: int, holds: int) -> None:
        self.session, self.believed, self.holds = session, believed, holds
        super().__init__(
            f"session {session}: {believed} tokens were believed to be held, but the engine holds {holds}; send the tokens from {holds} on"
        )


class TurnTooLongError(TurnRefusedError):
    """Context and answer together exceed what one turn may take (`limit` tokens)."""

    def __init__(self, session: SessionKey, asked: int, limit: int) -> None:
        self.session, self.asked, self.limit = session, asked, limit
        super().__init__(
            f"session {session}: context and max_new_tokens need {asked} positions, the engine has {limit}; "
            "lower max_new_tokens or end the episode as truncated"
        )


class TurnRequest(Struct, frozen=True, kw_only=True):
    """One turn to play. Example: `TurnRequest(turn_id=3, session=(7, 1), appended=tokens, held=0, seed=11)`."""

    turn_id: int
    """Chosen by the caller; unique among turns that wait or run."""
    session: SessionKey
    appended: np.ndarray
    """int32 [n]: the tokens from position `held` on. n may be 0 where something is held."""
    held: int
    """Tokens of the session before `appended`. Less than the engine holds: go back to there (a turn played again)."""
    seed: int
    """The token at session position p depends on (seed, p), the weights and the context alone. 64 bits are used."""
    temperature: float = 1.0
    """0 picks the likeliest token; log-probs are then those of temperature 1."""
    top_p: float = 1.0
    """Keeps the smallest set of likeliest tokens that reaches this share, after temperature and top-k."""
    top_k: int = 0
    """0 keeps all tokens."""
    max_new_tokens: int = 64
    stop_tokens: tuple[int, ...] = ()
    priority: float = 0.0
    """The greater goes first; equals go in order of arrival."""


class NearTie(Struct, frozen=True, array_like=True):
    """A draw so close to a boundary that rounding may have decided it: another batch could have given `other`."""

    position: int
    """Of the token, in the session."""
    token: int
    other: int
    probability: float
    other_probability: float
    """Both in the distribution before top-p and top-k."""


class TurnResult(Struct, frozen=True, kw_only=True):
    """A finished turn. Arrays have length n, the number of sampled tokens, where not said otherwise."""

    turn_id: int
    session: SessionKey
    context_tokens: int
    """Tokens of the session before `tokens`."""
    tokens: np.ndarray
    """int32 [n], the stop token included."""
    logprobs: np.ndarray
    """float32 [n], of the distribution that was sampled: temperature, top-k and top-p applied."""
    finish_reason: str
    """`stop` or `length`."""
    sample_spans: tuple[VersionSpan, ...]
    """Session positions; cover `tokens`."""
    kv_spans: tuple[VersionSpan, ...]
    """Session positions; cover all but the last, whose KV nothing has attended to yet."""
    kept_ids: np.ndarray
    """int32 [sum of kept_counts]: each token's kept ids, ascending, end to end. Empty at top-p 1 and top-k 0."""
    kept_counts: np.ndarray
    """int32 [n], or [0] where nothing was left out."""
    near_ties: tuple[NearTie, ...] = ()
    waiting_seconds: float = 0.0
    """From submit to the step that computed the first token."""
    running_seconds: float = 0.0
    """From there to the end."""


class EngineStats(Struct, frozen=True, kw_only=True):
    """Gauges (now) and counters (since the start)."""

    version: int
    paused: bool
    running: int
    """Turns that hold a decode row."""
    waiting: int
    sessions: int
    kv_tokens: int
    """Positions of KV held, for running and for idle sessions."""
    generated_tokens: int
    prefilled_tokens: int
    """Tokens computed in chunks: prompts, observations, and what an eviction made to be computed again."""
    evictions: int
    near_ties: int
    busy_seconds: float
    """Time spent inside step()."""


class Engine(Protocol):
    """One replica's engine."""

    def submit(self, request: TurnRequest) -> None:
        """Queues a turn. Raises SessionMismatchError, TurnTooLongError or TurnRefusedError and then changes nothing."""

    def held(self, session: SessionKey) -> int:
        """Tokens of the session that need not be sent again."""

    def step(self) -> list[TurnResult]:
        """A bounded amount of work: at most one token for each running turn and one bounded chunk of prefill."""

    def has_work(self) -> bool:
        """Whether step() would advance anything: a turn waits or runs, and the engine is not paused."""

    def abort(self, turn_id: int) -> bool:
        """Ends a turn without a result; its session goes back to `held`. False where it has ended."""

    def close_session(self, session: SessionKey) -> None:
        """Forgets a session, and aborts the turn it may have. Unknown sessions are ignored."""

    def pause(self) -> None:
        """step() does nothing until resume(); turns keep their place."""

    def resume(self) -> None:
        """Undoes pause()."""

    def install(self, version: int, state: Mapping[str, Tensor]) -> None:
        """New weights for all tokens from the next step on. Live sessions keep their KV. Raises TensorMismatchError."""

    def stats(self) -> EngineStats: ...
