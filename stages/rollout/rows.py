"""The running turns as columns of numbers, so that one step is a few array operations and no loop over rows.

Rows 0 .. decoding-1 take one token a step; rows decoding .. count-1 have context to compute first. Owns what a turn has
sampled so far. Knows no torch, no KV and no budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.records import no_tokens
from stages.rollout.chance import mixed_seed
from stages.rollout.engine import NearTie, TurnRequest, TurnResult
from stages.rollout.sessions import Mark, Session, spans

NO_TOKEN = -1
"""Pads the stop tokens of a row; equal to no token."""


Answer = tuple[NDArray[np.int32], NDArray[np.float32], str]
"""Tokens [n], log-probs [n] and finish reason."""


class StepInput(NamedTuple):
    """What one step computes; int64 arrays [N] and [rows that sample]."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    drawn: NDArray[np.int64]
    """Indices of the tokens whose next one is drawn, in the order of the rows."""


@dataclass
class RunningTurn:
    """What a row has beyond its numbers. Positions are those of the session."""

    request: TurnRequest
    session: Session[Any]
    submitted_at: float
    joined_at: float
    sample_marks: list[Mark] = field(default_factory=list)
    kept: list[NDArray[np.int32]] = field(default_factory=list)
    near_ties: list[NearTie] = field(default_factory=list)

    def result(self, answer: Answer, now: float) -> TurnResult:
        """Once the session is told what was sampled, and its KV is counted."""
        tokens, logprobs, reason = answer
        end = len(self.session.tokens)
        return TurnResult(
            turn_id=self.request.turn_id,
            session=self.session.key,
            context_tokens=end - len(tokens),
            tokens=tokens,
            logprobs=logprobs,
            finish_reason=reason,
            sample_spans=spans(self.sample_marks, end),
            kv_spans=spans(self.session.kv_marks, self.session.filled),
            kept_ids=np.concatenate(self.kept) if self.kept else no_tokens(),
            kept_counts=np.array([len(ids) for ids in self.kept], np.int32),
            near_ties=tuple(self.near_ties),
            waiting_seconds=self.joined_at - self.submitted_at,
            running_seconds=now - self.joined_at,
        )


class RunningRows:
    """Arrays of length `rows`; only the first `count` entries mean anything."""

    def __init__(self, rows: int) -> None:
        self.rows, self.count, self.decoding = rows, 0, 0
        self.turns: list[RunningTurn] = []
        self.filled = np.zeros(rows, np.int64)
        """Positions with KV. A decoding row's context is one longer: its last token is computed by the next step."""
        self.last_token = np.zeros(rows, np.int64)
        self.seed = np.zeros(rows, np.uint64)
        self.temperature = np.ones(rows, np.float32)
        self.top_p = np.ones(rows, np.float32)
        self.top_k = np.zeros(rows, np.int64)
        self.limit = np.zeros(rows, np.int64)
        self.sampled = np.zeros(rows, np.int64)
        self.stop_tokens = np.full((rows, 1), NO_TOKEN, np.int64)
        self.tokens = np.zeros((rows, 64), np.int32)
        self.logprobs = np.zeros((rows, 64), np.float32)

    @property
    def full(self) -> bool:
        return self.count == self.rows

    def join(self, turn: RunningTurn) -> int:
        """Adds a turn at the end, among those with context to compute. Returns its row."""
        row, request = self.count, turn.request
        self._widen(request)
        self.filled[row], self.sampled[row] = turn.session.filled, 0
        self.seed[row], self.limit[row] = mixed_seed(request.seed), request.max_new_tokens
        self.temperature[row], self.top_p[row], self.top_k[row] = request.temperature, request.top_p, request.top_k
        self.stop_tokens[row] = NO_TOKEN
        self.stop_tokens[row, : len(request.stop_tokens)] = request.stop_tokens
        self.turns.append(turn)
        self.count += 1
        return row

    def swap(self, one: int, other: int) -> None:
        for column in self._columns():
            column[[one, other]] = column[[other, one]]
        self.turns[one], self.turns[other] = self.turns[other], self.turns[one]

    def move(self, source: int, target: int) -> None:
        for column in self._columns():
            column[target] = column[source]
        self.turns[target] = self.turns[source]

    def drop_last(self) -> None:
        self.turns.pop()
        self.count -= 1

    def pending(self, row: int) -> int:
        """Context tokens of a joining row that are still to be computed."""
        return len(self.turns[row].session.tokens) - int(self.filled[row])

    def record(self, count: int, tokens: NDArray[np.int64], logprobs: NDArray[np.float32]) -> NDArray[np.intp]:
        """Rows 0 .. count-1 sampled these. Returns the rows whose turn has ended."""
        lines, at = np.arange(count), self.sampled[:count]
        self.tokens[lines, at] = tokens
        self.logprobs[lines, at] = logprobs
        self.last_token[:count] = tokens
        self.sampled[:count] += 1
        stopped = (tokens[:, None] == self.stop_tokens[:count]).any(axis=1)
        return np.flatnonzero(stopped | (self.sampled[:count] >= self.limit[:count]))

    def answer(self, row: int) -> Answer:
        """Copies of what the row has sampled, and why it would end now."""
        count = int(self.sampled[row])
        stopped = bool((self.stop_tokens[row] == self.last_token[row]).any())
        return self.tokens[row, :count].copy(), self.logprobs[row, :count].copy(), "stop" if stopped else "length"

    def packed(self, takes: NDArray[np.int64], ready: int) -> StepInput:
        """Last tokens of the decoding rows, then the next `takes` context tokens of each joining row."""
        tokens, positions = [self.last_token[: self.decoding]], [self.filled[: self.decoding]]
        for row, take in enumerate(takes.tolist(), start=self.decoding):
            start = int(self.filled[row])
            tokens.append(self.turns[row].session.tokens[start : start + take].astype(np.int64))
            positions.append(np.arange(start, start + take))
        chunk_ends = self.decoding + np.cumsum(takes[: ready - self.decoding]) - 1
        drawn = np.concatenate((np.arange(self.decoding), chunk_ends))
        return StepInput(np.concatenate(tokens), np.concatenate(positions), drawn)

    def _columns(self) -> tuple[NDArray[Any], ...]:
        numbers = (self.filled, self.last_token, self.seed, self.temperature, self.top_p, self.top_k)
        return (*numbers, self.limit, self.sampled, self.stop_tokens, self.tokens, self.logprobs)

    def _widen(self, request: TurnRequest) -> None:
        if len(request.stop_tokens) > self.stop_tokens.shape[1]:
            self.stop_tokens = _wider(self.stop_tokens, len(request.stop_tokens), NO_TOKEN)
        if request.max_new_tokens > self.tokens.shape[1]:
            width = max(request.max_new_tokens, 2 * self.tokens.shape[1])
            self.tokens, self.logprobs = _wider(self.tokens, width, 0), _wider(self.logprobs, width, 0)


def _wider(columns: NDArray[Any], width: int, filling: int) -> NDArray[Any]:
    wider = np.full((columns.shape[0], width), filling, columns.dtype)
    wider[:, : columns.shape[1]] = columns
    return wider
