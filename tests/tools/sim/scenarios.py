"""Small scenarios, and a run that checks every promise after every event."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from broker.core.actions import Action
from broker.core.events import Event
from broker.core.invariants import violations
from broker.core.state import State
from tools.sim.driver import fold
from tools.sim.laws import Laws, TrainerLaw, lognormal
from tools.sim.result import Result
from tools.sim.scenario import BrokerKill, Cut, Faults, Kill, Scenario, merged
from tools.sim.world import World

SLOW = Laws(tool_s=lognormal(0.05, 1.0, 3.0), trainer=TrainerLaw(step_s=0.4))
"""A run of eight small steps takes about ten virtual seconds: long enough for processes to die in it."""


def a_scenario(seed: int = 0, *, faults: Faults = Faults(), laws: Laws = SLOW, hosts: bool = False, **schedule: Any) -> Scenario:  # noqa: B008
    """Eight steps of three groups of four, two envs, two replicas."""
    config: dict[str, Any] = {
        "schedule": {"steps": 8, "groups_per_step": 3, "members": 4, **schedule}, "evaluation": {"problems": 6},
        "stages": {"env": {"environment": "sim:Environment", "replicas": 2}, "rollout": {"replicas": 2}},
    }  # fmt: skip
    return Scenario(seed=seed, config=config, laws=laws, faults=faults, hosts=hosts, time_limit_s=400.0)


def checks(state: State, event: Event, actions: Sequence[Action]) -> None:
    """No promise is broken, and nobody has more than it asked for."""
    assert violations(state) == [], event
    for client in state.clients.values():
        for queue, held in client.held.items():
            assert queue == "actions" or held <= max(client.windows.get(queue, 0), 0) or not client.connected, (client.name, queue)


def run(scenario: Scenario) -> Result:
    """Runs it; whatever happens in it, the promises of a whole run hold at its end."""
    world = World(scenario, watch=checks, keep=True)
    result = world.run()
    assert_whole(world, result)
    return result


def assert_whole(world: World, result: Result) -> None:
    """The run came to its end, and kept what it promised."""
    assert (result.failure, result.phase, result.steps) == (None, "closed", 8)
    assert_ledger_closes(result)
    assert_trained_once(result)
    assert_lag_is_bounded(world, result)
    assert world.driver.entries is not None
    state, arena = fold(world.driver.entries)
    assert msgspec.msgpack.encode(state) == msgspec.msgpack.encode(world.driver.state)
    assert len(arena) == len(world.driver.arena) <= 3  # installs; no record of a ticket is left behind


def assert_ledger_closes(result: Result) -> None:
    ledger = result.ledger
    ended = ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + sum(ledger.failed.values())
    assert (ledger.issued, result.in_flight, ledger.provisional, ledger.charged) == (ended, 0, 0, 0)


def assert_trained_once(result: Result) -> None:
    trained = [ticket for tickets in result.trained.values() for ticket in tickets]
    assert sorted(result.trained) == list(range(1, 9))
    assert len(trained) == len(set(trained)) == result.ledger.trained


def assert_lag_is_bounded(world: World, result: Result) -> None:
    schedule = world.config["schedule"]
    assert max(result.lags) <= (0 if schedule["kind"] == "sync" else schedule["max_lag"])


NAMES = ("env-0", "env-1", "rollout-0", "rollout-1", "reward-0", "reference-0", "actor-train-0", "weight-sync-0")


LEASES = ({}, {}, {"turns": 0.3}, {"tickets": 6.0}, {"episodes": 1.0, "scored": 0.5})
"""Hard deadlines by queue, seconds: some so short that they are missed now and then."""


def a_random_scenario(seed: int) -> Scenario:
    """Deaths, restarts, torn and doubled messages, failed votes, drawn from the seed."""
    rng = Random(seed)
    hosts = rng.random() < 0.5
    names = (*NAMES, "host-0") if hosts else NAMES
    deaths, broker_deaths, cuts = range(rng.randrange(6)), range(rng.randrange(4)), range(rng.randrange(5))
    faults = Faults(
        kills=tuple(Kill(name=rng.choice(names), at=rng.uniform(1, 14), restart_after_s=rng.choice([0.1, 1.0, 4.0])) for _ in deaths),
        broker=tuple(BrokerKill(at=rng.uniform(0.5, 14), down_s=rng.choice([0.1, 0.5, 3.0])) for _ in broker_deaths),
        cuts=tuple(Cut(name=rng.choice(names), at=rng.uniform(1, 14)) for _ in cuts),
        votes=tuple(rng.sample(range(1, 8), rng.randrange(2))), duplicated=rng.choice([0.0, 0.05]), torn=rng.choice([0.0, 0.02]),
        forgetful_trainer=rng.random() < 0.2,
    )  # fmt: skip
    laws = msgspec.structs.replace(SLOW, env_failure=rng.choice([0.0, 0.02]))
    scenario = a_scenario(seed, faults=faults, laws=laws, hosts=hosts, kind=rng.choice(["async", "sync"]), max_lag=rng.choice([0, 1, 2]))
    more = {
        "algorithm": {"kl_coefficient": rng.choice([0.0, 0.001])}, "broker": {"lease_s": rng.choice(LEASES), "max_deliveries": 50},
        "stages": {"actor_train": {"checkpoint_every": rng.choice([1, 1, 3])}},
    }  # fmt: skip
    return msgspec.structs.replace(scenario, config=merged(scenario.config, more))
