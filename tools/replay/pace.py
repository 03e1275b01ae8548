"""An engine held to the recorded pace: every turn is sampled by the versions that sampled it then, changing at the same token.

A turn's tokens depend on its seed, its context and the weights, not on its batch; what a faster or slower machine changes is where in a
turn an install falls. So a turn that was cut by an install is held back until it comes to stand at its recorded token when that install
is made; all others run at once.

    install v:   finish what ended before v ─ run those that v cut up to their token ─ install ─ let in what began under v

Wraps an engine (see stages.rollout.engine.Engine) that says how far its turns are. `unaligned` counts turns that could not be brought to
their token: their spans, and maybe tokens, differ, and the comparison says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from schemas.records import VersionSpan
from stages.rollout.engine import Engine, EngineStats, SessionKey, TurnRequest, TurnResult


class PacedInner(Engine, Protocol):
    """An engine that can be paced."""

    def sampled(self, turn_id: int) -> int | None:
        """Tokens that a running turn has sampled so far; None where it does not run."""


class Spans(Struct, frozen=True):
    """A recorded turn: tokens sampled, version by version."""

    lengths: tuple[tuple[int, int], ...]
    """(version, tokens)"""

    def upto(self, version: int) -> int:
        """Tokens sampled by `version` and those before it."""
        return sum(count for each, count in self.lengths if each <= version)

    @property
    def first(self) -> int:
        return self.lengths[0][0]

    @property
    def last(self) -> int:
        return self.lengths[-1][0]


def spans_of(recorded: tuple[VersionSpan, ...]) -> Spans:
    """Of an action's `sample_spans`; not empty."""
    return Spans(tuple((span.version, span.end - span.start) for span in recorded))


class PacedEngine:
    """See the module. `recorded`: spans of every turn that was answered, by lease; `refused`: leases that were answered with a failure."""

    def __init__(self, inner: PacedInner, recorded: Mapping[int, Spans], refused: frozenset[int]) -> None:
        self._inner = inner
        self._recorded = recorded
        self._refused = refused
        self._version = -1
        self._held_back: dict[int, TurnRequest] = {}
        self._running: dict[int, Spans] = {}
        self._done: list[TurnResult] = []
        self.unaligned = 0

    # --- as an engine -------------------------------------------------------------------------------------------------------

    def submit(self, request: TurnRequest) -> None:
        spans = self._recorded.get(request.turn_id)
        if request.turn_id in self._refused:
            self._inner.submit(request)
        elif spans is not None and spans.first <= self._version and spans.last <= self._version:
            self._let_in(request, spans)
        else:
            self._held_back[request.turn_id] = request

    def held(self, session: SessionKey) -> int:
        return self._inner.held(session)

    def has_work(self) -> bool:
        return bool(self._done) or (self._inner.has_work() and any(self._left(turn) != 0 for turn in self._running)) or self._is_refusing()

    def _is_refusing(self) -> bool:
        return not self._running and self._inner.has_work()

    def step(self) -> list[TurnResult]:
        if not self._done:
            self._advance()
        done, self._done = self._done, []
        return done

    def abort(self, turn_id: int) -> bool:
        if self._held_back.pop(turn_id, None) is not None:
            return True
        self._running.pop(turn_id, None)
        return self._inner.abort(turn_id)

    def close_session(self, session: SessionKey) -> None:
        for turn_id in [turn for turn, request in self._held_back.items() if request.session == session]:
            del self._held_back[turn_id]
        self._inner.close_session(session)

    def pause(self) -> None:
        self._inner.pause()

    def resume(self) -> None:
        self._inner.resume()

    def stats(self) -> EngineStats:
        return self._inner.stats()

    def install(self, version: int, state: Mapping[str, Any]) -> None:
        while self._has_to_run(version):
            self._let_in_cut_ones(at_install=True)
            self._advance()
        self.unaligned += sum((self._inner.sampled(turn) or 0) != spans.upto(self._version) for turn, spans in self._running.items())
        self._inner.install(version, state)
        self._version = version
        for turn_id in list(self._held_back):
            spans = self._recorded.get(turn_id)
            if spans is not None and spans.first <= version and spans.last <= version:
                self._let_in(self._held_back.pop(turn_id), spans)

    # --- the pace -----------------------------------------------------------------------------------------------------------

    def _let_in(self, request: TurnRequest, spans: Spans) -> None:
        self._inner.submit(request)
        self._running[request.turn_id] = spans

    def _left(self, turn_id: int) -> int | None:
        """Tokens until the install that cuts this turn; None where it ends before."""
        spans = self._running[turn_id]
        if spans.last <= self._version:
            return None
        return max(0, spans.upto(self._version) - (self._inner.sampled(turn_id) or 0))

    def _cut_ones(self) -> dict[int, int]:
        """Turns that begin under this version and are cut by the next install, with their tokens up to there."""
        found = {}
        for turn_id in self._held_back:
            spans = self._recorded.get(turn_id)
            if spans is not None and spans.first <= self._version:
                found[turn_id] = spans.upto(self._version)
        return found

    def _let_in_cut_ones(self, *, at_install: bool) -> None:
        """Those that are as far from the install as the foremost that runs; at the install, the longest begin."""
        waiting = self._cut_ones()
        lead = [left for turn in self._running if (left := self._left(turn)) is not None]
        if not waiting or (not lead and (not at_install or any(self._left(turn) is None for turn in self._running))):
            return
        due = max(lead) if lead else max(waiting.values())
        for turn_id, tokens in waiting.items():
            if tokens >= due:
                request = self._held_back.pop(turn_id)
                self._let_in(request, self._recorded[turn_id])

    def _has_to_run(self, version: int) -> bool:
        """Whether something is to be sampled before `version` is installed."""
        left = [self._left(turn) for turn in self._running]
        if any(each is None for each in left):
            return True
        return bool(self._cut_ones()) or any(left)

    def _advance(self) -> None:
        self._let_in_cut_ones(at_install=False)
        for result in self._inner.step():
            self._running.pop(result.turn_id, None)
            self._done.append(result)
