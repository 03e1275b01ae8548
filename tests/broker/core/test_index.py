"""The index beside the state: who is first in line, and that a state without one decides the same."""

from __future__ import annotations

import random

from broker.core.index import Index, Line, index_of
from broker.core.state import State
from broker.recovery import decode_state, encode_state
from tests.broker.core.mill import Mill


def test_who_holds_fewest_is_first_by_name_where_equal() -> None:
    line = Line()
    for name, held in (("c", 1), ("b", 0), ("a", 0)):
        line.note(name, held)
    assert line.first() == "a"
    line.note("a", 2)
    assert line.first() == "b"
    line.drop("b")
    assert line.first() == "c"


def test_nobody_is_first_where_nobody_has_room() -> None:
    line = Line()
    line.note("a", 0)
    line.drop("a")
    assert line.first() is None


def test_a_line_agrees_with_a_search_however_often_it_changes() -> None:
    seed = 3
    print("seed", seed)
    chance, line, held = random.Random(seed), Line(), dict[str, int]()
    for _ in range(5_000):
        name = f"c{chance.randrange(12)}"
        if chance.random() < 0.3:
            held.pop(name, None)
            line.drop(name)
        else:
            held[name] = chance.randrange(5)
            line.note(name, held[name])
        assert line.first() == (min(held, key=lambda each: (held[each], each)) if held else None)
    assert len(line._heap) < 200


def test_a_state_from_a_checkpoint_gets_an_index_of_its_own_that_says_the_same() -> None:
    mill = Mill().up("trainer", "sync", "rollout-1", "env-1")
    restored: State = decode_state(encode_state(mill.state))
    assert "index" not in restored.__dict__
    live, fresh = index_of(mill.state), index_of(restored)
    assert isinstance(fresh, Index)
    assert (live.installed, live.newest, live.oldest) == (fresh.installed, fresh.newest, fresh.oldest)
    assert {queue: line.held for queue, line in live.fair.items()} == {queue: line.held for queue, line in fresh.fair.items()}
