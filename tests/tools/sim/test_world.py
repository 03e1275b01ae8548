"""The world runs the real core: whole runs under a virtual clock, in milliseconds."""

from pathlib import Path

import msgspec
import pytest

from broker.core.events import Started, decode_event
from broker.journal import Journal
from tests.tools.sim.scenarios import NAMES, SLOW, a_random_scenario, a_scenario, assert_whole, checks, run
from tools.sim.driver import Entry, fold
from tools.sim.laws import Laws, TrainerLaw, agentic
from tools.sim.scenario import BrokerKill, Cut, Faults, Kill
from tools.sim.world import World, simulate


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("hosts", [False, True])
def test_a_run_comes_to_its_end(kind: str, hosts: bool) -> None:
    result = run(a_scenario(kind=kind, hosts=hosts))
    assert [evaluation.version for evaluation in result.evaluations] == [0, 8]
    assert result.ledger.evaluated == 12
    assert result.refusals == {}
    assert result.decisions["step_committed"] == 8


def test_the_same_scenario_gives_the_same_run() -> None:
    first, second = (run(a_random_scenario(5)) for _ in range(2))
    assert msgspec.msgpack.encode(first.state) == msgspec.msgpack.encode(second.state)
    assert (first.events, first.ended_at, first.lags) == (second.events, second.ended_at, second.lags)


def test_what_is_sampled_does_not_depend_on_the_schedule() -> None:
    """The first group of both is the same work."""
    lengths = []
    for kind in ("async", "sync"):
        world = World(a_scenario(kind=kind))
        lengths.append(world.run().ledger.lengths["evaluated"])
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("name", [*NAMES, "host-0"])
def test_any_process_may_die_once_and_the_run_goes_on(name: str) -> None:
    result = run(a_scenario(hosts=True, faults=Faults(kills=(Kill(name=name, at=5.0),))))
    assert result.deaths == {name: 1}


@pytest.mark.parametrize("name", NAMES)
def test_a_process_without_a_host_that_dies_in_silence_is_missed_and_replaced(name: str) -> None:
    run(a_scenario(faults=Faults(kills=(Kill(name=name, at=5.0, restart_after_s=15.0),))))


def test_a_replica_that_never_comes_back_is_done_without() -> None:
    run(a_scenario(faults=Faults(kills=(Kill(name="rollout-1", at=5.0, restart_after_s=None),))))


def test_the_broker_may_die_again_and_again() -> None:
    deaths = tuple(BrokerKill(at=at, down_s=0.3) for at in (1.2, 2.2, 3.2, 4.2, 5.2))
    result = run(a_scenario(faults=Faults(broker=deaths)))
    assert result.deaths == {"broker": 5}
    assert result.ledger.failed == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_line_costs_no_attempt_and_no_process(name: str) -> None:
    cuts = tuple(Cut(name=name, at=2.0 + 0.37 * index) for index in range(12))
    result = run(a_scenario(faults=Faults(cuts=cuts)))
    assert result.decisions["client_lost"] == len(NAMES)  # they leave, at the end
    assert result.ledger.failed == {}


def test_all_may_die_in_one_run() -> None:
    kills = tuple(Kill(name=name, at=3.0 + 0.7 * index) for index, name in enumerate((*NAMES, "host-0")))
    run(a_scenario(hosts=True, faults=Faults(kills=kills, broker=(BrokerKill(at=4.2), BrokerKill(at=7.1)))))


def test_a_process_that_dies_at_every_start_ends_the_run_with_its_name() -> None:
    kills = tuple(Kill(name="reward-0", at=2.0 + 0.4 * index) for index in range(200))
    result = simulate(a_scenario(hosts=True, faults=Faults(kills=kills)))
    assert result.phase == "closed"
    assert result.failure is not None
    assert result.failure.stage == "reward-0"
    assert result.in_flight == 0


def test_a_failed_vote_plans_the_same_samples_again() -> None:
    result = run(a_scenario(faults=Faults(votes=(3,))))
    assert result.decisions["plan_voided"] == 1


def test_a_trainer_that_makes_other_weights_loses_what_they_sampled_and_no_more() -> None:
    result = run(a_scenario(3, faults=Faults(kills=(Kill(name="actor-train-0", at=5.0),), forgetful_trainer=True)))
    assert result.state.trainer.lineage <= 1


def test_a_stop_ends_the_run_within_seconds_and_closes_the_ledger() -> None:
    world = World(a_scenario())
    world.at(4.0, lambda: world.stop("signal"))
    result = world.run()
    assert result.phase == "closed"
    assert result.ended_at < 4.0 + 5.0
    assert result.in_flight == 0
    assert result.ledger.dropped["run_end"] > 0


@pytest.mark.parametrize("at", [0.5, 1.5, 2.3, 3.1, 4.0, 5.7])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_stopped_run_goes_on_from_where_it_was(at: float, kind: str) -> None:
    world = World(a_scenario(kind=kind), watch=checks, keep=True)
    world.at(at, lambda: world.stop("signal"))
    stopped = world.run()
    assert (stopped.phase, stopped.in_flight) == ("closed", 0)
    assert_whole(world, world.resume())


def test_async_keeps_the_trainer_busier_than_sync_where_tools_have_a_long_tail() -> None:
    laws = msgspec.structs.replace(SLOW, tool_s=agentic(20.0), trainer=TrainerLaw(step_s=2.0))
    idle = {kind: run(a_scenario(kind=kind, laws=laws)).trainer_idle_share for kind in ("async", "sync")}
    assert idle["async"] < idle["sync"]


def test_the_journal_of_a_simulated_run_reads_like_a_live_one(tmp_path: Path) -> None:
    world = World(a_scenario(faults=Faults(broker=(BrokerKill(at=4.0),))), directory=tmp_path)
    world.run()
    world.driver.close()
    journal = Journal(tmp_path / "journal")
    entries = [Entry(entry.now, entry.event, entry.frames) for entry in journal.read()]
    journal.close()
    assert isinstance(decode_event(entries[0].event), Started)
    state, _ = fold(entries)
    assert msgspec.msgpack.encode(state) == msgspec.msgpack.encode(world.driver.state)
    with pytest.raises(FileExistsError):
        World(a_scenario(), directory=tmp_path)


def test_contexts_are_checked_against_what_envs_digested() -> None:
    world = World(a_scenario(laws=Laws()))
    world.run()
    assert world.disk.context_checks > 100


@pytest.mark.parametrize("seed", range(24))
def test_whatever_dies_or_gets_lost_the_run_ends_well(seed: int) -> None:
    print(f"seed {seed}")
    run(a_random_scenario(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_whatever_dies_or_gets_lost_the_run_ends_well_at_length(seed: int) -> None:
    print(f"seed {seed}")
    run(a_random_scenario(seed))
