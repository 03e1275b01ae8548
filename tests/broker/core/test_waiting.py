"""The three kinds of waiting at a queue are kept apart, and are a matter of events and time alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.core.waiting import counted
from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill

Mills = Callable[..., Mill]
QUIET = {"broker__dead_s": 1000.0, "broker__suspect_s": 500.0}


def waited(mill: Mill, queue: str) -> tuple[float, float, float]:
    """Seconds in the queue, starved, blocked."""
    stream = mill.state.queues[queue]
    return (stream.waited_s, *counted(stream.waiting, mill.now))


def test_a_consumer_with_room_and_nothing_to_take_starves(a_mill: Mills) -> None:
    mill = a_mill(*ALL, **QUIET)
    mill.tick(7.0)
    assert waited(mill, "episodes") == (0.0, 7.0, 0.0)
    mill.hello("reward-2")
    mill.tick(3.0)
    assert waited(mill, "episodes")[1] == pytest.approx(7.0 + 2 * 3.0)


def test_a_consumer_whose_window_is_full_does_not_starve(a_mill: Mills) -> None:
    mill = a_mill(*ALL, **QUIET)
    mill.send("reward-1", wire.Credit(queue="episodes", window=1))
    mill.play(mill.held("env-1", "tickets")[0])
    before = waited(mill, "episodes")[1]
    mill.tick(5.0)
    assert waited(mill, "episodes")[1] == before


def test_a_record_that_nobody_can_take_is_blocked_and_its_wait_is_counted_at_delivery(a_mill: Mills) -> None:
    mill = a_mill(*ALL, **QUIET)
    mill.send("rollout-1", wire.Credit(queue="turns", window=0))
    mill.turn(mill.held("env-1", "tickets")[0], "env-1")
    mill.tick(4.0)
    assert waited(mill, "turns") == (0.0, 0.0, 4.0)
    mill.send("rollout-1", wire.Credit(queue="turns", window=8))
    mill.tick(2.0)
    assert waited(mill, "turns") == (4.0, 2.0, 4.0)


def test_who_is_gone_does_not_starve(a_mill: Mills) -> None:
    mill = a_mill(*ALL, **QUIET)
    mill.say("reward-1", wire.Bye())
    mill.tick(5.0)
    assert waited(mill, "episodes")[1] == 0.0


def test_an_idle_trainer_starves_and_ready_groups_behind_a_busy_one_are_blocked(a_mill: Mills) -> None:
    mill = a_mill(*ALL, **QUIET)
    mill.tick(6.0)
    assert waited(mill, "samples")[1:] == (6.0, 0.0)
    mill.to_ready([1.0, 0.0])
    mill.tick(5.0)
    assert waited(mill, "samples")[1:] == (6.0, 0.0)
    mill.to_ready([1.0, 0.0])
    mill.tick(3.0)
    assert waited(mill, "samples")[1:] == (6.0, 3.0)
