"""Real training on several hosts: weights cross once, lines are cut and healed, hosts die and join, clocks disagree, and it learns.

The hosts have nothing in common but the network: no file, no process table, no clock; all but the first have no model either.
"""

from __future__ import annotations

import sys
import time

import pytest

from schemas.edges import Role
from tests.hosts.clocks import Clocks
from tests.hosts.lan import Lan
from tests.hosts.laws import Law
from tests.hosts.play import HOST_KEYS
from tests.hosts.training import SMALL, Training

pytestmark = pytest.mark.hosts
FAR = Law(delay_s=0.02, jitter_s=0.005, loss=0.01)
PARTITION_S = 30.0
"""What the promise says; not a measure of anything."""


def test_weights_cross_to_each_host_once_and_fan_out_there(lan: Lan) -> None:
    """Three replicas on two hosts: on one of them two share what one of them fetched."""
    training = Training(lan, 2, "schedule.steps=5", "stages.rollout.replicas=3", *SMALL)
    for name in ("one", "two"):
        lan.law(name, FAR)
    training.begin()
    training.check_the_end()
    homes = training.homes()
    assert {homes[name] for name in homes if name.startswith("rollout")} == {"one", "two"}
    fetched, full = training.fetched(), training.version_bytes()
    assert {len(bytes_) for bytes_ in fetched.values()} >= {1, 2}
    assert any(sum(bytes_) > 0 for bytes_ in fetched.values())
    assert all(sum(bytes_) <= full for bytes_ in fetched.values()), fetched
    for host in ("one", "two"):
        versions = sum(sum(bytes_) for (where, _), bytes_ in fetched.items() if where == host)
        assert lan.counts(host)["inward_passed_bytes"] > versions


def test_stages_by_their_own_commands_train_on_hosts_of_their_own(lan: Lan) -> None:
    """No host agent anywhere: beside the trainer a process of its own gives its weights to others."""
    training = Training(lan, 2, "schedule.steps=3", *SMALL)
    one, two = training.workers
    homes = {Role.ACTOR_TRAIN: training.head, Role.WEIGHT_SYNC: training.head, Role.ROLLOUT: one, Role.REFERENCE: one, Role.ENV: two,
             Role.REWARD: two}  # fmt: skip
    training.serve()
    giving = ("-m", "stages.blobs", "--broker", training.endpoint, "--name", "blobs-0")
    training.head.start("blobs", sys.executable, "-P", *giving, environment=HOST_KEYS)
    training.wait_for_note("client_ready", client="blobs-0")  # a stage that needs files which nobody gives ends, and says so
    stages = {role: training.stage(machine, role) for role, machine in homes.items()}
    training.check_the_end()
    assert {role: process.wait() for role, process in stages.items()} == dict.fromkeys(homes, 0)
    assert [replica for replica, receipt in training.receipts() if receipt.metrics.get("bytes", 0) > 0]


def test_a_host_cut_off_for_half_a_minute_is_stood_in_for_and_comes_back(lan: Lan) -> None:
    """Its work goes to the other host; healed, it stops what was moved away from it, and the run ends on both."""
    training = Training(lan, 2, "schedule.steps=30", "stages.rollout.replicas=2", *SMALL)  # far longer than the line is cut
    for name in ("one", "two"):
        lan.law(name, FAR)
    training.begin()
    training.wait_for_step(2)
    mine = [name for name, host in training.homes().items() if host == "one"]
    assert mine
    lan.cut("one")
    training.wait_for_note("client_lost", client="one")
    for name in mine:
        training.wait_for_note("client_lost", client=name)
    time.sleep(PARTITION_S / 2)
    lan.heal("one")
    training.wait_for_note("client_ready", client="one", times=2)
    training.check_the_end()
    moved = training.notes("process_moved")
    assert moved
    assert {note["before"] for note in moved} == {"one"}


def test_the_only_host_of_a_role_is_waited_for_while_its_line_is_cut(lan: Lan) -> None:
    training = Training(lan, 1, "schedule.steps=8", *SMALL)
    lan.law("one", FAR)
    training.begin()
    training.wait_for_step(2)
    lan.cut("one")
    time.sleep(PARTITION_S)
    assert training.head.named("serve").at_work
    lan.heal("one")
    training.check_the_end()
    assert set(training.homes().values()) == {"head", "one"}


def test_a_run_goes_on_without_a_host_that_died(lan: Lan) -> None:
    training = Training(
        lan, 2, "schedule.steps=8", "stages.env.replicas=2", "stages.rollout.replicas=2", "stages.reward.replicas=2", *SMALL
    )
    training.begin()
    training.wait_for_step(2)
    victim = training.homes()["rollout-0"]
    lan.kill(victim)
    training.check_the_end()
    moved = training.notes("process_moved")
    assert moved
    assert all(note["before"] == victim != note["host"] for note in moved)


def test_a_host_that_joins_late_is_given_a_replica(lan: Lan) -> None:
    training = Training(lan, 1, "schedule.steps=40", "stages.rollout.replicas_max=3", *SMALL, "schedule.groups_per_step=4")
    training.begin()
    training.wait_for_step(1)
    late = training.prepare("late")
    training.join(late)
    training.check_the_end()
    gained = {name for name, host in training.homes().items() if host == "late"}
    assert gained
    assert gained & {replica for replica, _ in training.receipts()}


def test_hosts_whose_clocks_disagree_by_ten_minutes_train_over_a_bad_line_and_learn(lan: Lan, clocks: Clocks) -> None:
    training = Training(lan, 2, "stages.rollout.replicas=2")
    for name in ("one", "two"):
        lan.law(name, FAR)
    shifts = {"one": clocks.off_by(600, training.workers[0].world), "two": clocks.off_by(-600, training.workers[1].world)}
    training.begin(shifts)
    training.check_the_end(least_accuracy=0.90)
