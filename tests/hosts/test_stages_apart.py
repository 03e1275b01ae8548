"""Stages on hosts of their own, by their own commands: a slow and lossy line, a cut one, a death for good, a stranger."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.edges import Role
from tests.broker.test_restarts import check_that_every_ticket_ended_once
from tests.hosts.lan import Lan
from tests.hosts.laws import Law
from tests.hosts.machine import HOUSE, Process
from tests.hosts.play import Play
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

FAR = Law(delay_s=0.02, jitter_s=0.005, loss=0.01)
ENDS_S = 120.0
QUICK_TO_GIVE_UP = ("broker.suspect_s=0.5", "broker.dead_s=1.0", "broker.max_deliveries=10")


def a_play(lan: Lan, folder: Path, *overrides: str) -> Play:
    """A broker on `head`, and two more hosts with keys."""
    play = Play(lan.host("head"), a_run_config(folder, *overrides))
    for name in ("two", "three"):
        play.let_in(lan.host(name))
    play.start_broker()
    return play


def spread_out(lan: Lan, play: Play) -> dict[str, Process]:
    """All six roles: what keeps files in the run directory beside the broker, the others on hosts of their own."""
    places = {Role.ENV: "two", Role.REWARD: "two", Role.ROLLOUT: "three", Role.REFERENCE: "three"}
    started = [play.skeleton(lan.hosts[places.get(role, "head")], role) for role in STAGE_ORDER]
    return {process.name: process for process in started}


STAGE_ORDER = (Role.ACTOR_TRAIN, Role.WEIGHT_SYNC, Role.ENV, Role.REWARD, Role.ROLLOUT, Role.REFERENCE)


def connections(lan: Lan, host: str) -> str:
    """TCP connections that a host believes to be there."""
    return lan.hosts[host].call("ss", "-Htn", "state", "established").stdout


def check_the_end(play: Play, stages: dict[str, Process]) -> None:
    """The broker closed its ledger, everybody was sent home, and nobody failed."""
    assert play.head.named("broker").wait(ENDS_S) == 0
    codes = {name: process.wait() for name, process in stages.items()}
    assert set(codes.values()) == {0}, codes
    check_that_every_ticket_ended_once(play.run)


def test_a_run_over_slow_lossy_lines_closes_its_ledger(lan: Lan, tmp_path: Path) -> None:
    play = a_play(lan, tmp_path)
    for name in ("two", "three"):
        lan.law(name, FAR)
    check_the_end(play, spread_out(lan, play))
    assert lan.counts("two")["outward_passed_bytes"] > 10_000


@pytest.mark.parametrize("host", ["two", "three"])
def test_a_host_cut_off_until_it_is_given_up_comes_back_and_the_run_ends_well(lan: Lan, tmp_path: Path, host: str) -> None:
    play = a_play(lan, tmp_path, "schedule.steps=40", *QUICK_TO_GIVE_UP)
    lan.law(host, FAR)
    stages = spread_out(lan, play)
    play.wait_for_step(3)
    lan.cut(host)
    for name in ("env-0", "reward-0") if host == "two" else ("rollout-0", "reference-0"):
        play.wait_until_lost(name)
    # Left to the kernel the dead connections would stay for a quarter of an hour, and each try again minutes after the healing.
    until(lambda: not connections(lan, host), "the dead connections are given up", lambda: connections(lan, host))
    lan.heal(host)
    check_the_end(play, stages)


@pytest.mark.parametrize("way", [{"outward": False}, {"inward": False}])
def test_a_line_cut_in_one_direction_is_healed_without_loss(lan: Lan, tmp_path: Path, way: dict[str, bool]) -> None:
    """The host hears the broker but is not heard, or the reverse."""
    play = a_play(lan, tmp_path, "schedule.steps=40", *QUICK_TO_GIVE_UP)
    lan.law("three", FAR)
    stages = spread_out(lan, play)
    play.wait_for_step(3)
    lan.cut("three", **way)
    play.wait_until_lost("rollout-0")
    lan.heal("three")
    check_the_end(play, stages)


@pytest.mark.parametrize("victim", [Role.ENV, Role.ROLLOUT])
def test_a_stage_killed_for_good_on_one_host_is_done_without_where_another_serves(lan: Lan, tmp_path: Path, victim: Role) -> None:
    play = a_play(lan, tmp_path, "schedule.steps=20", *QUICK_TO_GIVE_UP)
    stages = spread_out(lan, play)
    second = play.skeleton(lan.hosts["head"], victim, 1)
    play.wait_for_step(3)
    dead = stages.pop(f"{victim.value}-0")
    dead.strike()
    assert dead.wait() == -9
    check_the_end(play, {**stages, second.name: second})


def test_a_host_that_dies_for_good_is_done_without_where_others_serve(lan: Lan, tmp_path: Path) -> None:
    """Its line goes first: nothing says goodbye, no connection is closed."""
    play = a_play(lan, tmp_path, "schedule.steps=20", *QUICK_TO_GIVE_UP)
    stages = spread_out(lan, play)
    others = {f"{role.value}-1": play.skeleton(lan.hosts["three"], role, 1) for role in (Role.ENV, Role.REWARD)}
    play.wait_for_step(3)
    lan.kill("two")
    play.wait_until_lost("env-0")
    alive = {name: stages[name] for name in stages if name not in ("env-0", "reward-0")}
    check_the_end(play, alive | others)


def test_a_stage_on_a_host_that_joins_late_is_given_work(lan: Lan, tmp_path: Path) -> None:
    play = a_play(lan, tmp_path)
    places = {Role.ENV: "two", Role.REWARD: "two", Role.REFERENCE: "three"}
    roles = [role for role in STAGE_ORDER if role is not Role.ROLLOUT]
    stages = {f"{role.value}-0": play.skeleton(lan.hosts[places.get(role, "head")], role) for role in roles}
    late = lan.host("late")
    play.let_in(late, Role.ROLLOUT)
    stages["rollout-0"] = play.skeleton(late, Role.ROLLOUT)
    check_the_end(play, stages)


def test_a_stranger_without_a_key_or_with_one_of_its_own_is_refused_and_told(lan: Lan, tmp_path: Path) -> None:
    play = a_play(lan, tmp_path)
    stranger = lan.host("stranger")
    lan.law("stranger", FAR)
    without = stranger.call("tidemill", "env", "--broker", play.endpoint, "--name", "env-9")
    assert without.returncode == 2
    assert "asks for a key" in without.stderr + without.stdout
    assert stranger.call("tidemill", "keys", "new", "mine").returncode == 0
    own = ("--key", "/tmp/home/.config/tidemill/keys/clients/mine.key")
    server = stranger.inside("/tmp/home/server.pub")
    server.write_bytes(lan.hosts["two"].inside("/tmp/home/server.pub").read_bytes())
    forged = stranger.call("tidemill", "env", "--broker", play.endpoint, "--name", "env-9", *own, "--server-key", "/tmp/home/server.pub")
    assert forged.returncode == 2
    assert "does not know this key" in forged.stderr + forged.stdout
    assert not any(b"env-9" in segment.read_bytes() for segment in (play.run / "journal").glob("*.log"))


def test_a_key_for_one_role_opens_no_other(lan: Lan, tmp_path: Path) -> None:
    play = a_play(lan, tmp_path)
    guest = lan.host("guest")
    play.let_in(guest, Role.REWARD)
    refused = play.stage(guest, Role.ROLLOUT)
    assert refused.wait() == 2
    assert "forbidden" in refused.story()


def test_a_broker_that_others_can_reach_does_not_start_without_keys(lan: Lan, tmp_path: Path) -> None:
    head = lan.host("head")
    a_run_config(tmp_path)
    pipeline = ("compose/pipelines/calculator.toml", "--set", f"broker.endpoint=tcp://{head.address}:7700")
    refused = head.call("tidemill", "check", str(HOUSE / pipeline[0]), *pipeline[1:])
    assert refused.returncode == 2
    assert "tidemill keys new" in refused.stderr
