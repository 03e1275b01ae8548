"""An engine without a model: it says a turn's appended tokens again, one a step, and then a stop token if there is one.

For tests of protocols and of the stage around it: it keeps the Protocol's promises about sessions, refusals, aborts,
pauses and spans, and needs no torch. Log-probs are 0: it is always certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from schemas.records import no_tokens
from stages.rollout.engine import EngineStats, SessionKey, TurnRefusedError, TurnRequest, TurnResult
from stages.rollout.scheduling import WaitingLine
from stages.rollout.sessions import Mark, Session, SessionBook, mark, spans

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class _EchoTurn:
    request: TurnRequest
    session: Session[None]
    answer: list[int]
    said: int = 0
    sample_marks: list[Mark] = field(default_factory=list)

    def context_tokens(self) -> int:
        return len(self.session.tokens)


class FakeEngine:
    """See stages.rollout.engine.Engine. `longest` bounds a turn's context and answer, `vocabulary` its token ids."""

    def __init__(self, version: int = 0, max_rows: int = 8, longest: int = 1024, vocabulary: int = 1 << 20) -> None:
        self._version, self._max_rows, self._paused = version, max_rows, False
        self._sessions: SessionBook[None] = SessionBook(vocabulary, longest)
        self._line = WaitingLine()
        self._turns: dict[int, _EchoTurn] = {}
        self._generated = self._prefilled = 0

    def submit(self, request: TurnRequest) -> None:
        if request.turn_id in self._turns:
            raise TurnRefusedError(f"turn {request.turn_id} is already here")
        session = self._sessions.open(request)
        self._turns[request.turn_id] = _EchoTurn(request, session, _echo(request))
        self._line.add(request.turn_id, request.priority)

    def held(self, session: SessionKey) -> int:
        return self._sessions.held(session)

    def has_work(self) -> bool:
        return not self._paused and bool(self._turns)

    def step(self) -> list[TurnResult]:
        if not self.has_work():
            return []
        while len(self._line) and len(self._running()) < self._max_rows:
            self._join(self._turns[self._line.pop()])
        for turn in self._running():
            turn.said += 1
            turn.session.filled = turn.context_tokens() + turn.said - 1
            self._generated += 1
        return [self._finish(turn) for turn in self._running() if turn.said == len(turn.answer)]

    def abort(self, turn_id: int) -> bool:
        turn = self._turns.pop(turn_id, None)
        if turn is None:
            return False
        self._line.remove(turn_id)
        self._sessions.undo_turn(turn.session)
        return True

    def close_session(self, session: SessionKey) -> None:
        if session in self._sessions:
            open_turn = self._sessions[session].open_turn
            if open_turn is not None:
                self.abort(open_turn)
            self._sessions.forget(session)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def install(self, version: int, state: Mapping[str, Tensor]) -> None:
        """The weights are not looked at."""
        self._version = version
        for turn in self._running():
            mark(turn.session.kv_marks, turn.session.filled, version)
            mark(turn.sample_marks, turn.context_tokens() + turn.said, version)

    def stats(self) -> EngineStats:
        return EngineStats(
            version=self._version,
            paused=self._paused,
            running=len(self._running()),
            waiting=len(self._line),
            sessions=len(self._sessions),
            kv_tokens=0,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            evictions=0,
            near_ties=0,
            busy_seconds=0.0,
        )

    def _running(self) -> list[_EchoTurn]:
        return [turn for turn_id, turn in self._turns.items() if turn_id not in self._line]

    def _join(self, turn: _EchoTurn) -> None:
        mark(turn.sample_marks, turn.context_tokens(), self._version)
        mark(turn.session.kv_marks, turn.session.filled, self._version)
        self._prefilled += turn.context_tokens() - turn.session.filled

    def _finish(self, turn: _EchoTurn) -> TurnResult:
        del self._turns[turn.request.turn_id]
        context, tokens = turn.context_tokens(), np.array(turn.answer, np.int32)
        self._sessions.close_turn(turn.session, tokens)
        stopped = bool(tokens[-1] in turn.request.stop_tokens)
        return TurnResult(
            turn_id=turn.request.turn_id,
            session=turn.session.key,
            context_tokens=context,
            tokens=tokens,
            logprobs=np.zeros(len(tokens), np.float32),
            finish_reason="stop" if stopped else "length",
            sample_spans=spans(turn.sample_marks, context + len(tokens)),
            kv_spans=spans(turn.session.kv_marks, turn.session.filled),
            kept_ids=no_tokens(),
            kept_counts=no_tokens(),
        )


def _echo(request: TurnRequest) -> list[int]:
    """The appended tokens up to the first stop token, then a stop token, all within max_new_tokens; never empty."""
    stops = request.stop_tokens
    heard = [int(token) for token in request.appended]
    length = next((at for at, token in enumerate(heard) if token in stops), len(heard))
    answer = heard[:length] + list(stops[:1])
    return answer[: request.max_new_tokens] or [0]
