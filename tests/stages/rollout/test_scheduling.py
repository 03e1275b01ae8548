from __future__ import annotations

from stages.rollout.scheduling import KeyValueBudget, WaitingLine, chunk_sizes


def test_idle_sessions_make_room_least_recently_used_first() -> None:
    budget = KeyValueBudget(100)
    for ticket, positions in ((1, 30), (2, 30), (3, 30)):
        budget.rest((ticket, 1), positions)
    budget.rest((1, 1), 30)
    assert budget.to_evict(10) == []
    assert budget.to_evict(11) == [(2, 1)]
    assert budget.to_evict(70) == [(2, 1), (3, 1)]


def test_running_turns_are_never_evicted() -> None:
    budget = KeyValueBudget(100)
    budget.start(1, 60)
    budget.rest((5, 1), 30)
    assert budget.has_room(40)
    assert not budget.has_room(41)
    assert budget.to_evict(40) == [(5, 1)]
    budget.end(1)
    assert budget.to_evict(70) == []


def test_a_session_that_wakes_is_charged_once() -> None:
    budget = KeyValueBudget(100)
    budget.rest((1, 1), 30)
    budget.rest((1, 1), 40)
    assert budget.idle_tokens == 40
    budget.wake((1, 1))
    budget.wake((1, 1))
    assert budget.idle_tokens == 0


def test_the_line_is_by_priority_then_arrival_and_can_be_left() -> None:
    line = WaitingLine()
    for turn_id, priority in ((1, 0.0), (2, 1.0), (3, 1.0), (4, 0.0)):
        line.add(turn_id, priority)
    line.remove(3)
    assert 3 not in line
    assert [line.pop() for _ in range(len(line))] == [2, 1, 4]
    assert line.first() is None


def test_a_lone_row_takes_the_whole_budget_and_many_share_it() -> None:
    assert chunk_sizes([1000], budget=512, least=32) == [512]
    assert chunk_sizes([5, 3, 1000], budget=90, least=4) == [5, 3, 30]
    assert chunk_sizes([40] * 10, budget=64, least=16) == [16] * 10
    assert chunk_sizes([], budget=64, least=16) == []
