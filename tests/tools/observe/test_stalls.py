"""Real runs, each brought to a halt in another way: the first line that `tidemill doctor` prints names the cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.edges import STAGES, Role
from tests.skeleton.broker_process import HOUSE, BrokerProcess, a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import Crew, a_crew
from tests.skeleton.peer import Peer
from tests.skeleton.stages import FakeEnv, FakeReward, FakeWeightSync
from tests.skeleton.waiting import until
from tests.tools.observe import stalls
from tools.observe import doctor
from tools.observe.target import find

QUICK = "broker.stall_notice_s=0.5"
PATIENT = "broker.dead_s=60"
"""A silent process stays suspect for the whole test."""


@contextmanager
def a_run(tmp_path: Path, *overrides: str, peers: dict[Role, Peer | None] | None = None) -> Iterator[tuple[BrokerProcess, Crew]]:
    """A broker and a crew; `peers` take the place of the ordinary ones, None leaves the role out."""
    with a_broker_process(tmp_path / "run", a_run_config(tmp_path, QUICK, *overrides)) as broker:
        others: Iterable[Role] = [role for role in STAGES if role not in (peers or {})]
        with a_crew(broker.endpoint, others) as crew:
            for role, peer in (peers or {}).items():
                if peer is not None:
                    crew.add(role, peer=peer)
            yield broker, crew


def first_line(broker: BrokerProcess, patience_s: float = 20.0) -> str:
    return doctor.lines_of(doctor.examine(find(str(broker.run)), patience_s))[0]


def until_named(broker: BrokerProcess, *words: str, patience_s: float = 20.0) -> None:
    """Until the doctor's first line holds all of these words."""
    said: list[str] = [""]

    def named() -> bool:
        said[0] = first_line(broker, patience_s)
        return all(word in said[0] for word in words)

    until(named, f"the doctor says {words}", lambda: f"it says: {said[0]}; {broker.log()[-800:]}")


CAUSES = [
    pytest.param({Role.ENV: stalls.HungStep}, ("env-0: the step function", "has not answered"), id="a step function hangs"),
    pytest.param({Role.ENV: stalls.HungReset}, ("env-0: the reset", "has not answered"), id="a reset hangs"),
    pytest.param({Role.ROLLOUT: stalls.NoReceipt}, ("rollout-0 has sent no receipt for version 0",), id="no receipt"),
    pytest.param({Role.ROLLOUT: stalls.NoWindow}, ("rollout-0 gives no credit for turns", "window 0"), id="no credit"),
    pytest.param({Role.REFERENCE: None}, ("reference is missing",), id="a role is missing"),
    pytest.param({Role.ACTOR_TRAIN: stalls.NoVote}, ("actor-train-0 computes step 1", "has not voted"), id="a step never ends"),
    pytest.param({Role.ACTOR_TRAIN: stalls.NoVersion}, ("actor-train-0", "has not published a version"), id="no version"),
    pytest.param(
        {Role.REFERENCE: stalls.KeepsSlot, Role.ACTOR_TRAIN: stalls.NeedsSlot},
        ("reference-0 has not released cpu:0", "actor-train-0 waits for it"),
        id="a slot is never released",
    ),
]


@pytest.mark.parametrize(("plants", "words"), CAUSES)
def test_the_first_line_names_the_cause(tmp_path: Path, plants: dict[Role, type[Peer] | None], words: tuple[str, ...]) -> None:
    peers = {role: None if kind is None else kind() for role, kind in plants.items()}
    with a_run(tmp_path, peers=peers) as (broker, _):
        until_named(broker, "stall:", *words)


@pytest.mark.parametrize(
    ("role", "kind", "words"),
    [
        (Role.REWARD, FakeReward, ("reward-0: the verifier has not answered",)),
        (Role.WEIGHT_SYNC, FakeWeightSync, ("version 0 is not verified: weight-sync-0 works on it",)),
    ],
)
def test_work_that_is_never_answered_is_named_with_its_holder(tmp_path: Path, role: Role, kind: type[Peer], words: tuple[str, ...]) -> None:
    peer = kind()
    peer.slow = True
    with a_run(tmp_path, peers={role: peer}) as (broker, _):
        until_named(broker, "stall:", *words)


def test_a_dead_env_is_named(tmp_path: Path) -> None:
    with a_run(tmp_path, "schedule.steps=1000") as (broker, crew):
        until(lambda: crew.members["env-0"].peer.answered > 3, "env plays", crew.story)
        crew.members["env-0"].crash()
        until_named(broker, "stall: env is gone", "env-0")


def test_all_envs_gone_are_named(tmp_path: Path) -> None:
    with a_run(tmp_path, "schedule.steps=1000") as (broker, crew):
        second = crew.add(Role.ENV, "env-1", FakeEnv())
        until(lambda: second.peer.answered > 3, "both envs play", crew.story)
        second.crash()
        until_named(broker, "env-1 is gone", "the other env processes go on")
        crew.members["env-0"].crash()
        until_named(broker, "all 2 processes", "env-0", "env-1")


def test_a_frozen_process_is_named_with_what_the_kernel_says(tmp_path: Path) -> None:
    with a_run(tmp_path, "schedule.steps=1000", PATIENT, peers={Role.ENV: None}) as (broker, crew):
        command = [sys.executable, "-m", "tests.skeleton", "env", "--broker", broker.endpoint, "--name", "env-0"]
        with subprocess.Popen(command, cwd=HOUSE, stderr=subprocess.DEVNULL) as env:
            try:
                until(lambda: crew.members["rollout-0"].peer.answered > 3, "env plays", crew.story)
                os.kill(env.pid, signal.SIGSTOP)
                until_named(broker, "env-0 is silent", f"process {env.pid} is stopped (SIGSTOP)")
            finally:
                env.kill()


def test_a_process_whose_thread_hangs_is_silent_and_named(tmp_path: Path) -> None:
    hung = stalls.HungReward()
    with a_run(tmp_path, PATIENT, peers={Role.REWARD: hung}) as (broker, _):
        try:
            until_named(broker, "stall: reward-0 is silent", "hung")
        finally:
            hung.free.set()


def test_a_group_that_misses_a_member_is_named_with_the_session_and_where_it_is(tmp_path: Path) -> None:
    straggler = stalls.OneStraggler()
    with a_run(tmp_path, peers={Role.ENV: straggler}) as (broker, _):
        until_named(broker, "stall: group", "misses member 1", "env-0", "the other 1 are through")
        assert f"ticket {straggler.stuck} " in first_line(broker)


def test_dead_letters_that_grow_are_named_with_the_last_cause(tmp_path: Path) -> None:
    with a_run(tmp_path, "broker.member_retries=0", "evaluation.problems=8", peers={Role.REWARD: stalls.FailingReward()}) as (broker, _):
        until_named(broker, "dead letters grow", "episodes", "division by zero")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with a_run(tmp_path, "broker.journal_quota_bytes=1") as (broker, _):
        until_named(broker, "stall: the disk is full")


def test_a_stage_that_is_given_up_ends_the_run_by_its_name(tmp_path: Path) -> None:
    with a_run(tmp_path, "schedule.steps=1000") as (broker, crew):
        crew.add(Role.HOST, "host", stalls.LastExit())
        until_named(broker, "failed: the run has failed: rollout-0", "5 restarts", patience_s=1.0)


def test_a_frozen_broker_is_named(tmp_path: Path) -> None:
    with a_run(tmp_path, "schedule.steps=1000") as (broker, _):
        assert broker.process is not None
        os.kill(broker.process.pid, signal.SIGSTOP)
        line = first_line(broker, patience_s=0.3)
        os.kill(broker.process.pid, signal.SIGCONT)
        assert line.startswith(f"stall: the broker (process {broker.process.pid}) is frozen: it is stopped (SIGSTOP)")
        assert "its journal was last written" in line


def test_a_dead_broker_is_named(tmp_path: Path) -> None:
    with a_run(tmp_path, "schedule.steps=1000") as (broker, crew):
        assert broker.process is not None
        until(lambda: all(hasattr(member.peer, "link") for member in crew.members.values()), "all are at work", crew.story)
        broker.kill()
        line = first_line(broker, patience_s=0.3)
        assert line.startswith(f"stall: the broker (process {broker.process.pid}) is dead: nobody answers at {broker.endpoint}")


def test_of_a_run_that_goes_well_the_first_line_says_so(tmp_path: Path) -> None:
    with a_run(tmp_path, "broker.stall_notice_s=20", "schedule.steps=1000") as (broker, crew):
        until(lambda: crew.members["actor-train-0"].peer.answered or crew.members["reference-0"].peer.answered, "it trains", crew.story)
        until_named(broker, "nothing is wrong")
        shown = subprocess.run(
            [sys.executable, "-m", "tools", "doctor", str(broker.run)], cwd=HOUSE, capture_output=True, text=True, check=False
        )
        assert shown.stdout.startswith("nothing is wrong: ")
        assert shown.returncode == 0
