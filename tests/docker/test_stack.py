"""The whole stack on a real engine: it trains whatever happens to its containers, leaves when it is told to, and ends."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml

from tests.docker.engine import Engine
from tests.docker.stack import COMPOSE, GPU, KILLED, NETWORK, Stack, a_stack

pytestmark = pytest.mark.docker
ACCURACY = 0.9
"""What a run of the quickstart reaches; its start is at about 0.3."""


def check_that_the_run_is_done(stack: Stack) -> None:
    """The run reached its steps, every ticket ended once, and every container knows that it is over."""
    (run,) = stack.runs
    summary = stack.summary()
    ledger = summary["ledger"]
    assert (summary["ended"], summary["steps"]) == ("done", summary["steps_asked"]), stack.story()
    assert ledger["closed"]
    assert ledger["issued"] == ledger["trained"] + ledger["evaluated"] + sum(ledger["dropped"].values()) + sum(ledger["failed"].values())
    assert not (run / "failure.json").exists()
    ends = {container.name: stack.state(container)["ExitCode"] for container in [*stack.of("broker"), *stack.every_stage()]}
    assert set(ends.values()) == {0}, f"{ends}\n{stack.story()}"


def test_the_quickstart_is_learnt_under_kills_a_partition_and_restarts(engine: Engine, build: Mapping[str, str]) -> None:
    with a_stack(engine, build) as stack:
        stack.compose("up", "--detach", "--scale", "rollout=2", "--scale", "env=3")
        stack.wait_until_ready()
        network = stack.client.networks.get(NETWORK)
        stack.wait_for_step(1)
        stack.kill(stack.of("env")[0])
        (trainer,) = stack.of("actor-train")  # while it is away no step is made: the run is still there for all that follows
        network.disconnect(trainer)
        stack.wait(lambda: stack.processes().get(stack.name_of(trainer)) == "gone", "the broker gives the trainer up")
        network.connect(trainer)
        stack.wait(lambda: stack.processes().get(stack.name_of(trainer)) == "ready", "the trainer is back")
        stack.kill(trainer)
        (broker,) = stack.of("broker")
        broker.restart(timeout=8)
        stack.kill(stack.of("rollout")[0])
        stack.kill(broker)
        for service in ("reward", "reference", "weight-sync"):
            stack.kill(stack.of(service)[0])
        stack.wait_until_over()
        check_that_the_run_is_done(stack)
        assert stack.summary()["accuracy_after"] >= ACCURACY
        assert len(stack.of("rollout")) == 2
        assert len(stack.of("env")) == 3
        killed = ("env", "rollout", "actor-train", "broker", "reward", "reference", "weight-sync")
        restarts = {service: stack.of(service)[0].attrs["RestartCount"] for service in killed}
        assert min(restarts.values()) >= 1, restarts


def test_healthy_means_that_the_loop_turns_and_the_broker_answers(engine: Engine, build: Mapping[str, str]) -> None:
    with a_stack(engine, build) as stack:
        stack.compose("up", "--detach", "--scale", "env=2", "broker", "env")
        stack.wait_until_ready()
        (cut_off, frozen), network = stack.of("env"), stack.client.networks.get(NETWORK)
        network.disconnect(cut_off)
        with stack.frozen(frozen):
            stack.wait(lambda: [stack.health(each) for each in (cut_off, frozen)] == ["unhealthy"] * 2, "both are found to be unhealthy")
        network.connect(cut_off)
        stack.wait_until_ready()


def test_a_stack_that_is_stopped_leaves_in_time_and_goes_on_where_it_was(engine: Engine, build: Mapping[str, str]) -> None:
    with a_stack(engine, build, ARGS="--set schedule.steps=8 --set evaluation.problems=50") as stack:
        stack.compose("up", "--detach")
        stack.wait_for_step(2)
        stack.compose("stop")
        ends = {container.name: stack.state(container)["ExitCode"] for container in [*stack.of("broker"), *stack.every_stage()]}
        assert KILLED not in ends.values(), f"{ends}\n{stack.story()}"
        assert not (stack.runs[0] / "summary.json").exists()
        before = stack.step()
        assert before < 8
        stack.compose("up", "--detach")
        stack.wait_until_over()
        check_that_the_run_is_done(stack)
        assert stack.summary()["ledger"]["dropped"].get("run_end", 0) == 0
        assert stack.summary()["ledger"]["failed"] == {}


def test_what_cannot_be_run_is_said_and_not_tried_for_ever(engine: Engine, build: Mapping[str, str]) -> None:
    with a_stack(engine, build, PIPELINE="/work/nothing.toml") as stack:
        said = stack.compose("up", "--detach", check=False)
        stack.wait(stack.over, "the broker stays down")
        (broker,) = stack.of("broker")
        assert stack.state(broker)["ExitCode"] == 2, said
        assert b"/work/nothing.toml" in broker.logs()
        assert broker.attrs["RestartCount"] <= 5
        assert not [container for container in stack.every_stage() if stack.state(container)["Running"]]


def test_the_overlay_for_gpus_is_valid(engine: Engine, build: Mapping[str, str]) -> None:
    stack = Stack(engine, build)
    services = yaml.safe_load(stack.compose("config", files=(COMPOSE, GPU)))["services"]
    stack.client.close()
    devices = {name: service["deploy"]["resources"]["reservations"]["devices"] for name, service in services.items() if "deploy" in service}
    wanted = [{"driver": "nvidia", "capabilities": ["gpu"], "device_ids": ["0"]}]
    assert devices == {"rollout": wanted, "reference": wanted, "actor-train": wanted}
