"""An engine held to the recorded pace: installs fall at the recorded tokens, however fast the machine is."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.records import VersionSpan
from stages.rollout.engine import TurnRequest, TurnResult
from stages.rollout.fake_engine import FakeEngine
from tools.replay.pace import PacedEngine, Spans, spans_of


class CountingEngine(FakeEngine):
    """A fake that says how far its turns are."""

    def sampled(self, turn_id: int) -> int | None:
        turn = self._turns.get(turn_id)
        return None if turn is None else turn.said


def a_turn(turn_id: int, length: int) -> TurnRequest:
    """It is said again, token by token: `length` tokens."""
    return TurnRequest(turn_id=turn_id, session=(turn_id, 1), appended=np.arange(1, length + 1, dtype=np.int32), held=0, seed=0,
                       max_new_tokens=length)  # fmt: skip


def played(recorded: dict[int, Spans], turns: dict[int, list[int]], installs: list[int]) -> dict[int, TurnResult]:
    """Each install's turns are submitted after it, longest wait first; then the next is made."""
    engine = PacedEngine(CountingEngine(version=-1), recorded, frozenset())
    results: dict[int, TurnResult] = {}
    for version in installs:
        engine.install(version, {})
        for turn in turns.get(version, []):
            engine.submit(a_turn(turn, sum(count for _, count in recorded[turn].lengths)))
    while engine.has_work():
        results |= {result.turn_id: result for result in engine.step()}
    assert engine.unaligned == 0
    return results


@pytest.mark.parametrize(
    "lengths",
    [
        {1: ((0, 5),), 2: ((0, 2), (1, 3))},
        {1: ((0, 4), (1, 1)), 2: ((0, 2), (1, 3)), 3: ((0, 1), (1, 6))},
        {1: ((0, 3), (1, 4), (2, 2)), 2: ((0, 1), (1, 4), (2, 5)), 3: ((0, 2), (1, 1))},
    ],
)
def test_a_turn_that_an_install_cut_is_cut_at_the_same_token(lengths: dict[int, tuple[tuple[int, int], ...]]) -> None:
    recorded = {turn: Spans(parts) for turn, parts in lengths.items()}
    results = played(recorded, {0: list(lengths)}, [0, 1, 2])
    assert {turn: spans_of(result.sample_spans) for turn, result in results.items()} == recorded


def test_a_turn_of_a_later_version_waits_for_it() -> None:
    engine = PacedEngine(CountingEngine(version=-1), {1: spans_of((VersionSpan(3, 6, 1),))}, frozenset())
    engine.install(0, {})
    engine.submit(a_turn(1, 3))
    assert not engine.has_work()
    engine.install(1, {})
    assert engine.has_work()


def test_a_turn_that_was_never_answered_is_held_until_it_is_aborted() -> None:
    engine = PacedEngine(CountingEngine(version=-1), {}, frozenset())
    engine.install(0, {})
    engine.submit(a_turn(1, 3))
    assert not engine.has_work()
    assert engine.abort(1)
    assert not engine.abort(1)
