from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from schemas.records import VersionSpan
from stages.rollout.engine import SessionMismatchError, TurnRequest
from stages.rollout.fake_engine import FakeEngine


def a_turn(turn_id: int, appended: tuple[int, ...] = (5, 6, 7), held: int = 0, **changes: object) -> TurnRequest:
    tokens = np.array(appended, np.int32)
    fields = {"session": (1, 1), "seed": 0, "stop_tokens": (9,)} | changes
    return TurnRequest(turn_id=turn_id, appended=tokens, held=held, **fields)  # type: ignore[arg-type]


def test_it_echoes_one_token_a_step_and_then_stops() -> None:
    engine = FakeEngine(version=3)
    engine.submit(a_turn(1))
    assert [len(engine.step()) for _ in range(3)] == [0, 0, 0]
    (result,) = engine.step()
    assert result.tokens.tolist() == [5, 6, 7, 9]
    assert (result.finish_reason, result.context_tokens) == ("stop", 3)
    assert result.sample_spans == (VersionSpan(3, 7, 3),)
    assert result.kv_spans == (VersionSpan(0, 6, 3),)
    assert engine.held((1, 1)) == 7


def test_it_keeps_the_promises_about_sessions_and_installs() -> None:
    engine = FakeEngine(version=3)
    engine.submit(a_turn(1, max_new_tokens=2))
    engine.step()
    engine.install(4, {})
    (result,) = engine.step()
    assert result.finish_reason == "length"
    assert result.sample_spans == (VersionSpan(3, 4, 3), VersionSpan(4, 5, 4))
    with pytest.raises(SessionMismatchError) as caught:
        engine.submit(a_turn(2, held=6))
    assert caught.value.holds == 5
    engine.submit(a_turn(2, held=5))
    assert engine.abort(2)
    assert engine.held((1, 1)) == 5
    engine.close_session((1, 1))
    assert engine.stats().sessions == 0


def test_a_paused_engine_does_nothing() -> None:
    engine = FakeEngine()
    engine.submit(a_turn(1))
    engine.pause()
    assert engine.step() == []
    assert engine.stats().paused
    engine.resume()
    assert engine.has_work()


def test_neither_the_protocol_nor_the_fake_imports_torch() -> None:
    script = "import sys, stages.rollout.engine, stages.rollout.fake_engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
