"""The embedded engine: continuous batching over the shared decoder, in this process.

Owns the running rows and the sessions' KV. Promises: a turn joins and leaves at any token; its tokens depend on its
seed, its context and the weights, not on its batch (up to rounding, reported as near-ties); a live session keeps its
KV across an install (policy `keep`), and every span says which version sampled and which computed the KV. Not safe to
share between threads.

    step:  admit from the line ─ evict, copy KV in
           pack               ─ one token of each decoding row, a chunk of each joining row
           decoder            ─ logits of every row that has its context
           draw, record       ─ those that stopped: copy KV out, close the hole, TurnResult
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.errors import EngineError
from stages.model.cached import CachedDecoder, PackedBatch
from stages.model.config import DecoderConfig
from stages.rollout.chance import uniforms
from stages.rollout.engine import EngineStats, NearTie, SessionKey, TurnRefusedError, TurnRequest, TurnResult
from stages.rollout.kv import KeyValueRows
from stages.rollout.rows import RunningRows, RunningTurn
from stages.rollout.sampling import Draws, SamplingRows, draw
from stages.rollout.scheduling import KeyValueBudget, WaitingLine, chunk_sizes
from stages.rollout.sessions import Session, SessionBook, mark


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """How much the engine takes on."""

    max_rows: int = 128
    """Turns that decode together."""
    max_context_tokens: int = 1024
    """Context and answer of one turn."""
    kv_tokens: int = 65_536
    """Positions of KV, of running and idle sessions together."""
    prefill_tokens: int = 512
    """Context tokens computed in one step, shared among joining rows."""
    least_chunk_tokens: int = 32
    """What each joining row gets of them at any rate."""


@dataclass
class _Waiting:
    request: TurnRequest
    submitted_at: float


@dataclass
class _Counters:
    generated: int = 0
    prefilled: int = 0
    evictions: int = 0
    near_ties: int = 0
    busy_seconds: float = 0.0


class TorchEngine:
    """See stages.rollout.engine.Engine. `clock` gives seconds; it is only reported, nothing depends on it."""

    def __init__(
        self,
        config: DecoderConfig,
        version: int,
        state: Mapping[str, Tensor],
        limits: EngineLimits | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits = limits or EngineLimits()
        self._decoder = CachedDecoder(config, state, self.limits.max_context_tokens, dtype, device)
        self._version, self._clock, self._paused = version, clock, False
        self._kv = KeyValueRows(self._decoder, self.limits.max_rows)
        self._rows = RunningRows(self.limits.max_rows)
        longest = min(self.limits.max_context_tokens, self.limits.kv_tokens)
        self._sessions: SessionBook[Tensor] = SessionBook(config.vocab_size, longest)
        self._budget, self._line = KeyValueBudget(self.limits.kv_tokens), WaitingLine()
        self._waiting: dict[int, _Waiting] = {}
        self._running: set[int] = set()
        self._counters = _Counters()

    # What the driver asks for.

    def submit(self, request: TurnRequest) -> None:
        if request.turn_id in self._waiting or request.turn_id in self._running:
            raise TurnRefusedError(f"turn {request.turn_id} is already here")
        session = self._sessions.open(request)
        self._rest(session)
        self._waiting[request.turn_id] = _Waiting(request, self._clock())
        self._line.add(request.turn_id, request.priority)

    def held(self, session: SessionKey) -> int:
        return self._sessions.held(session)

    def sampled(self, turn_id: int) -> int | None:
        """Tokens that a running turn has sampled so far; None where it does not run."""
        return next((int(self._rows.sampled[row]) for row, turn in enumerate(self._rows.turns) if turn.request.turn_id == turn_id), None)

    def has_work(self) -> bool:
        return not self._paused and (self._rows.count > 0 or len(self._line) > 0)

    def step(self) -> list[TurnResult]:
        if not self.has_work():
            return []
        started = self._clock()
        self._admit(started)
        results = self._advance() if self._rows.count else []
        self._counters.busy_seconds += self._clock() - started
        return results

    def abort(self, turn_id: int) -> bool:
        if turn_id in self._waiting:
            session = self._sessions[self._waiting.pop(turn_id).request.session]
            self._line.remove(turn_id)
        elif turn_id in self._running:
            session = self._stop_row(next(r for r, t in enumerate(self._rows.turns) if t.request.turn_id == turn_id))
        else:
            return False
        self._sessions.undo_turn(session)
        self._rest(session)
        return True

    def close_session(self, session: SessionKey) -> None:
        if session in self._sessions:
            open_turn = self._sessions[session].open_turn
            if open_turn is not None:
                self.abort(open_turn)
            self._budget.wake(session)
            self._sessions.forget(session)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def install(self, version: int, state: Mapping[str, Tensor]) -> None:
        self._decoder.install(state)
        self._version = version
        for row, turn in enumerate(self._rows.turns):
            filled = int(self._rows.filled[row])
            mark(turn.session.kv_marks, filled, version)
            mark(turn.sample_marks, len(turn.session.tokens) + int(self._rows.sampled[row]), version)

    def tensors_in_use(self) -> dict[str, Tensor]:
        """The weights of the next step under Hugging Face's names, for a receipt's digests."""
        return self._decoder.tensors_in_use()

    def stats(self) -> EngineStats:
        running_tokens = int(self._rows.filled[: self._rows.count].sum())
        return EngineStats(
            version=self._version,
            paused=self._paused,
            running=self._rows.count,
            waiting=len(self._line),
            sessions=len(self._sessions),
            kv_tokens=self._budget.idle_tokens + running_tokens,
            generated_tokens=self._counters.generated,
            prefilled_tokens=self._counters.prefilled,
            evictions=self._counters.evictions,
            near_ties=self._counters.near_ties,
            busy_seconds=self._counters.busy_seconds,
        )

    # Joining.

    def _admit(self, now: float) -> None:
        while not self._rows.full and (turn_id := self._line.first()) is not None:
            request = self._waiting[turn_id].request
            session = self._sessions[request.session]
            charge = len(session.tokens) + request.max_new_tokens
            if not self._budget.has_room(charge):
                return
            self._line.pop()
            self._join(self._waiting.pop(turn_id), session, charge, now)

    def _join(self, waiting: _Waiting, session: Session[Tensor], charge: int, now: float) -> None:
        self._budget.wake(session.key)
        for key in self._budget.to_evict(charge):
            self._evict(self._sessions[key])
        request = waiting.request
        self._budget.start(request.turn_id, charge)
        self._running.add(request.turn_id)
        turn = RunningTurn(request, session, waiting.submitted_at, now)
        mark(turn.sample_marks, len(session.tokens), self._version)
        mark(session.kv_marks, session.filled, self._version)
        row = self._rows.join(turn)
        self._kv.make_room(charge)
        if session.kept is not None:
            self._kv.put(row, session.kept, session.filled)
            session.kept = None

    def _evict(self, session: Session[Tensor]) -> None:
        self._budget.wake(session.key)
        session.drop_kv()
        self._counters.evictions += 1

    # One step.

    def _advance(self) -> list[TurnResult]:
        takes, ready = self._plan_chunks()
        rows = self._rows
        tokens, positions, drawn = map(self._on_device, rows.packed(takes, ready))
        batch = PackedBatch(tokens, positions, rows.decoding, takes.tolist())
        logits = self._decoder.logits(batch, self._kv.buffer, drawn)
        rows.filled[: rows.decoding] += 1
        rows.filled[rows.decoding : rows.count] += takes
        self._counters.prefilled += int(takes.sum())
        rows.decoding = ready
        return self._sample(logits) if ready else []

    def _plan_chunks(self) -> tuple[np.ndarray, int]:
        """Tokens that each joining row computes now, and how many rows sample; those that do are put first."""
        rows = self._rows
        pending = [rows.pending(row) for row in range(rows.decoding, rows.count)]
        takes = chunk_sizes(pending, self.limits.prefill_tokens, self.limits.least_chunk_tokens)
        ready = rows.decoding
        for at in range(len(takes)):
            if takes[at] == pending[at]:
                target = ready - rows.decoding
                if target != at:
                    self._swap(rows.decoding + at, ready)
                    takes[at], takes[target] = takes[target], takes[at]
                    pending[at], pending[target] = pending[target], pending[at]
                ready += 1
        return np.array(takes, np.int64), ready

    def _swap(self, one: int, other: int) -> None:
        self._kv.swap(one, other, int(max(self._rows.filled[one], self._rows.filled[other])))
        self._rows.swap(one, other)

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self._decoder.device)

    def _sample(self, logits: Tensor) -> list[TurnResult]:
        rows, count = self._rows, self._rows.decoding
        how = SamplingRows(rows.temperature[:count], rows.top_p[:count], rows.top_k[:count])
        draws = draw(logits, how, uniforms(rows.seed[:count], rows.filled[:count]))
        if not np.isfinite(draws.logprobs).all():
            cause = "its training has diverged" if self._version else "that is the model at model.path: look at its config.json and weights"
            raise EngineError(f"version {self._version} gives logits that are not finite: {cause}")
        self._note_exceptions(draws)
        ended = rows.record(count, draws.tokens, draws.logprobs)
        self._counters.generated += count
        now = self._clock() if ended.size else 0.0
        # From the last row down: closing a hole moves only rows that come after it.
        return [self._finish(row, now) for row in reversed(ended.tolist())]

    def _note_exceptions(self, draws: Draws) -> None:
        for row, kept in draws.kept.items():
            self._rows.turns[row].kept.append(kept)
        for tie in draws.ties:
            position = int(self._rows.filled[tie.row])
            near = NearTie(position, tie.token, tie.other, tie.probability, tie.other_probability)
            self._rows.turns[tie.row].near_ties.append(near)
            self._counters.near_ties += 1

    # Leaving.

    def _finish(self, row: int, now: float) -> TurnResult:
        turn, answer = self._rows.turns[row], self._rows.answer(row)
        session = self._stop_row(row)
        self._sessions.close_turn(session, answer[0])
        self._rest(session)
        return turn.result(answer, now)

    def _stop_row(self, row: int) -> Session[Tensor]:
        """Frees a row; its KV goes back to its session."""
        rows, turn = self._rows, self._rows.turns[row]
        session = turn.session
        session.filled = int(rows.filled[row])
        session.kept = self._kv.take(row, session.filled)
        self._running.discard(turn.request.turn_id)
        self._budget.end(turn.request.turn_id)
        if row < rows.decoding:
            rows.decoding -= 1
            self._fill_hole(row, rows.decoding)
            row = rows.decoding
        self._fill_hole(row, rows.count - 1)
        rows.drop_last()
        return session

    def _fill_hole(self, hole: int, source: int) -> None:
        if hole != source:
            self._kv.move(source, hole, int(self._rows.filled[source]))
            self._rows.move(source, hole)

    def _rest(self, session: Session[Tensor]) -> None:
        """The session's KV, as much as counts, may be evicted from now on."""
        self._budget.rest(session.key, session.filled if session.kept is not None else 0)
