"""Admission in the loop: what enters when, by schedule."""

from collections.abc import Callable

from broker.core.actions import Store
from schemas import messages as wire
from schemas.records import Ticket
from tests.broker.core.mill import ALL, Mill

MakeMill = Callable[..., Mill]


def admitted(mill: Mill) -> int:
    """Training groups admitted so far."""
    return mill.state.next_task


def test_async_admits_groups_up_to_the_lag_beyond_the_oldest_version_in_use(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__max_lag=1, schedule__groups_per_step=1, schedule__steps=5)
    assert admitted(mill) == 2
    mill.to_ready([1.0, 0.0])
    mill.vote(1)
    mill.send("trainer", wire.CheckpointSaved(step=1))
    mill.publish(1)
    assert admitted(mill) == 2  # committed, but nobody samples with it yet
    mill.install("rollout-1")
    assert admitted(mill) == 3


def test_sync_admits_one_round_at_a_time_once_its_version_is_in_use(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__kind="sync", schedule__groups_per_step=2)
    assert admitted(mill) == 2
    mill.to_ready([1.0, 0.0])
    mill.to_ready([1.0, 0.0])
    assert mill.last("trainer", wire.Plan).oldest_allowed_version == 0
    assert admitted(mill) == 2
    mill.train(1)
    assert admitted(mill) == 4
    assert {mill.state.tickets[d.header.ticket].version for d in mill.held("env-1", "tickets")} == {1}


def test_no_group_is_admitted_that_no_step_is_left_for(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__steps=1, schedule__max_lag=5)
    assert admitted(mill) == 1


def test_members_of_a_group_play_the_same_task_with_the_same_seed_base(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL, schedule__members=3)
    stored = [action for action in mill.actions if isinstance(action, Store)]
    bodies = [(store.header.group, store.record) for store in stored]
    first = [record for group, record in bodies if group == 1]
    assert len(first) == 3
    assert all(isinstance(record, Ticket) for record in first)
    assert len({(record.task_index, record.seed) for record in first if isinstance(record, Ticket)}) == 1
    assert len({record.seed for _, record in bodies if isinstance(record, Ticket)}) == len({group for group, _ in bodies})


def test_held_out_problems_are_asked_first(a_mill: MakeMill) -> None:
    mill = a_mill("rollout-1", "trainer", "sync", evaluation__at_start=True, evaluation__problems=3)
    mill.hello("env-1", windows={"tickets": 2})
    assert [d.header.purpose for d in mill.held("env-1", "tickets")] == ["eval", "eval"]
    assert admitted(mill) == 0
    mill.send("env-1", wire.Credit(queue="tickets", window=4))
    mill.tick()
    assert [d.header.purpose for d in mill.held("env-1", "tickets")] == ["eval", "eval", "eval", "train"]
