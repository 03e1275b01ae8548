"""What an engine knows of its sessions: their tokens, how much KV there is, and which version computed it.

Owns the rule of what a turn may assume to be held, and the way back when a turn is aborted. Promises that a refused
turn changes nothing. Pure; the KV itself is whatever the engine hands over, never looked into.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from schemas.records import VersionSpan, no_tokens
from stages.rollout.engine import SessionKey, SessionMismatchError, TurnRefusedError, TurnRequest, TurnTooLongError

KeyValues = TypeVar("KeyValues")


class Mark(NamedTuple):
    """From position `start` on, `version` it was."""

    start: int
    version: int


def mark(marks: list[Mark], start: int, version: int) -> None:
    """Notes that everything from `start` on is by `version`; later notes at or after `start` are void."""
    while marks and marks[-1].start >= start:
        marks.pop()
    if not marks or marks[-1].version != version:
        marks.append(Mark(start, version))


def spans(marks: list[Mark], end: int) -> tuple[VersionSpan, ...]:
    """The marks as spans up to `end`, empty ones left out."""
    ends = [following.start for following in marks[1:]] + [end]
    pairs = zip(marks, ends, strict=True)
    return tuple(VersionSpan(m.start, min(until, end), m.version) for m, until in pairs if m.start < min(until, end))


@dataclass
class Session(Generic[KeyValues]):
    key: SessionKey
    tokens: NDArray[np.int32] = field(default_factory=no_tokens)
    """The whole context; while a turn is open, up to where it starts to sample."""
    filled: int = 0
    """Positions whose KV `kept` holds. At most len(tokens)."""
    kept: KeyValues | None = None
    """The KV while no turn runs; None while one does, and after an eviction."""
    kv_marks: list[Mark] = field(default_factory=list)
    open_turn: int | None = None
    held_before: int = 0
    """Where an abort of the open turn goes back to."""

    def drop_kv(self) -> None:
        self.filled, self.kept = 0, None
        self.kv_marks.clear()


class SessionBook(Generic[KeyValues]):
    """All sessions of one engine. `longest` bounds context and answer of a turn together, in tokens."""

    def __init__(self, vocabulary: int, longest: int) -> None:
        self._vocabulary, self._longest = vocabulary, longest
        self._sessions: dict[SessionKey, Session[KeyValues]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __getitem__(self, key: SessionKey) -> Session[KeyValues]:
        return self._sessions[key]

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._sessions

    def held(self, key: SessionKey) -> int:
        session = self._sessions.get(key)
        return 0 if session is None else len(session.tokens)

    def open(self, request: TurnRequest) -> Session[KeyValues]:
        """Appends the turn's tokens to its session. Raises TurnRefusedError, and then changes nothing."""
        self._check(request)
        session = self._sessions.setdefault(request.session, Session(request.session))
        session.tokens = np.concatenate((session.tokens[: request.held], request.appended.astype(np.int32, copy=False)))
        # One position less than the context: the last token is computed again to get the first new one.
        session.filled = min(session.filled, request.held, len(session.tokens) - 1)
        session.open_turn, session.held_before = request.turn_id, request.held
        return session

    def close_turn(self, session: Session[KeyValues], sampled: NDArray[np.int32]) -> None:
        """The turn ended well: what it sampled belongs to the context."""
        session.tokens = np.concatenate((session.tokens, sampled))
        session.open_turn = None

    def undo_turn(self, session: Session[KeyValues]) -> None:
        """The turn is void: the session goes back to the tokens before it, and to no more KV than those."""
        session.tokens = session.tokens[: session.held_before]
        session.filled = min(session.filled, session.held_before)
        session.open_turn = None

    def forget(self, key: SessionKey) -> None:
        self._sessions.pop(key, None)

    def _check(self, request: TurnRequest) -> None:
        key, holds = request.session, self.held(request.session)
        session = self._sessions.get(key)
        if session is not None and session.open_turn is not None:
            raise TurnRefusedError(f"session {key} has turn {session.open_turn} open; one at a time")
        if not 0 <= request.held <= holds:
            raise SessionMismatchError(key, request.held, holds)
        self._check_sampling(request)
        context = request.held + len(request.appended)
        if context == 0:
            raise TurnRefusedError(f"session {key}: a turn needs at least one token of context")
        if context + request.max_new_tokens > self._longest:
            raise TurnTooLongError(key, context + request.max_new_tokens, self._longest)
        if len(request.appended) and not 0 <= request.appended.min() <= request.appended.max() < self._vocabulary:
            raise TurnRefusedError(f"session {key}: a token id is outside 0..{self._vocabulary - 1}")

    def _check_sampling(self, request: TurnRequest) -> None:
        sound = request.temperature >= 0 and 0 < request.top_p <= 1 and request.top_k >= 0 and request.max_new_tokens >= 1
        if not sound:
            raise TurnRefusedError(
                f"turn {request.turn_id}: temperature {request.temperature}, top_p {request.top_p}, top_k "
                f"{request.top_k}, max_new_tokens {request.max_new_tokens}: needed are >= 0, (0, 1], >= 0 and >= 1"
            )
