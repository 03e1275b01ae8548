"""The stack of compose/docker-compose.yml on an engine: brought up by `docker compose`, looked at and harmed by the SDK."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import psutil
from docker.models.containers import Container

from tests.docker.engine import Engine
from tests.skeleton.waiting import until

HOUSE = Path(__file__).resolve().parents[2]
COMPOSE = HOUSE / "compose" / "docker-compose.yml"
GPU = HOUSE / "compose" / "docker-compose.gpu.yml"
IMAGE = "tidemill:test"
PROJECT = "tidemill-test"
NETWORK = f"{PROJECT}_default"
STAGES = ("env", "rollout", "reward", "reference", "actor-train", "weight-sync")
PATIENCE_S = 420.0
"""For anything but the build, on two cores that others use as well."""
LOOK_S = 0.5
"""Between two looks at the engine, whose answers cost the stack's own processor time."""
KILLED = 128 + signal.SIGKILL
UNSAID = dict.fromkeys(("PIPELINE", "WORK", "RUN", "ARGS"), "")
"""What the file reads from the environment: `make` hands its own ARGS on to whatever it starts."""


class Stack:
    """One compose project. `variables`: what a person would write before the command."""

    def __init__(self, engine: Engine, build: Mapping[str, str], **variables: str) -> None:
        self._environment = {**engine.environment(), **UNSAID, **build, "IMAGE": IMAGE, **variables}
        self.client = docker.DockerClient(base_url=engine.socket, timeout=120)

    def compose(self, *arguments: str, files: tuple[Path, ...] = (COMPOSE,), limit_s: float = PATIENCE_S, check: bool = True) -> str:
        """Its output. Raises AssertionError with it where the command fails."""
        named = [part for file in files for part in ("-f", str(file))]
        command = ["docker", "compose", "-p", PROJECT, *named, *arguments]
        ended = subprocess.run(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=limit_s
        )  # fmt: skip
        assert ended.returncode == 0 or not check, f"{' '.join(arguments)} ended with {ended.returncode}: {ended.stdout[-4000:]}"
        return ended.stdout

    # --- looking ------------------------------------------------------------------------------------------------------------

    def of(self, service: str) -> list[Container]:
        """Containers of a service, the first first; ended ones too."""
        found = self.client.containers.list(all=True, filters={"label": [f"com.docker.compose.project={PROJECT}"]})
        mine = [container for container in found if container.labels["com.docker.compose.service"] == service]
        return sorted(mine, key=lambda container: int(container.labels["com.docker.compose.container-number"]))

    def every_stage(self) -> list[Container]:
        return [container for service in STAGES for container in self.of(service)]

    def state(self, container: Container) -> dict[str, Any]:
        container.reload()
        found: dict[str, Any] = container.attrs["State"]
        return found

    def health(self, container: Container) -> str:
        return str(self.state(container).get("Health", {}).get("Status", "none"))

    @property
    def runs(self) -> list[Path]:
        """Run directories, as they lie in the volume."""
        volume = Path(self.client.volumes.get(f"{PROJECT}_runs").attrs["Mountpoint"])
        return sorted(path for path in volume.iterdir() if (path / "config.json").is_file())

    def step(self) -> int:
        """The last committed step of the newest run."""
        metrics = self.runs[-1] / "metrics.jsonl" if self.runs else Path("/nowhere")
        lines = metrics.read_text().splitlines() if metrics.is_file() else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs[-1] / "summary.json").read_text())
        return found

    def processes(self) -> dict[str, str]:
        """States of the run's processes as the broker sees them, by name; empty where it does not answer."""
        (broker,) = self.of("broker")
        try:
            code, said = broker.exec_run(["tidemill", "top", self.runs[-1].name, "--once", "--json"])
        except docker.errors.APIError:  # it is being started again
            return {}
        if code != 0:
            return {}
        return {row["name"]: row["state"] for row in json.loads(said)["processes"]}

    def name_of(self, container: Container) -> str:
        """What the run calls the process in it."""
        return f"{container.labels['com.docker.compose.service']}-{container.attrs['Config']['Hostname']}"

    def story(self) -> str:
        """For a failed test: how all stand, and what the broker has said."""
        every = [*self.of("broker"), *self.every_stage()]
        rows = [f"{each.name}: {self.state(each)['Status']} {self.state(each)['ExitCode']} {self.health(each)}" for each in every]
        return "\n".join([*rows, *(f"{each.name} said: {each.logs(tail=15).decode(errors='replace')}" for each in every)])

    # --- waiting ------------------------------------------------------------------------------------------------------------

    def wait(self, claim: Callable[[], object], what: str) -> None:
        def looked_at_now_and_then() -> object:
            time.sleep(LOOK_S)
            return claim()

        until(looked_at_now_and_then, what, self.story, PATIENCE_S)

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.step() >= step or self.over(), f"step {step} is committed")
        assert self.step() >= step, self.story()

    def wait_until_ready(self) -> None:
        """Every container is healthy, and the broker knows each as ready."""
        every = [*self.of("broker"), *self.every_stage()]
        self.wait(lambda: all(self.health(container) == "healthy" for container in every), "all containers are healthy")
        names = {self.name_of(container) for container in self.every_stage()}
        seen = self.processes()
        assert {seen.get(name) for name in names} == {"ready"}, f"{seen}\n{self.story()}"

    def over(self) -> bool:
        """The broker's container is down and stays down."""
        (broker,) = self.of("broker")
        return self.state(broker)["Status"] == "exited"

    def wait_until_over(self) -> None:
        self.wait(self.over, "the run ends")
        self.wait(lambda: all(self.state(c)["Status"] == "exited" for c in self.every_stage()), "all stages have gone home")

    # --- harming ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def frozen(self, container: Container) -> Iterator[None]:
        """Its process stands still, and the container does not know."""
        (process,) = psutil.Process(self.state(container)["Pid"]).children()
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    def kill(self, container: Container) -> None:
        """By the pid on this machine, as a crash: the engine's own kill would count as a person's wish. Waits for the restart."""
        state = self.state(container)
        assert state["Running"], f"{container.name} does not run, so it cannot be killed: {self.story()}"
        os.kill(state["Pid"], signal.SIGKILL)
        anew = lambda: self.state(container)["Running"] and self.state(container)["StartedAt"] != state["StartedAt"]  # noqa: E731
        self.wait(anew, f"{container.name} is started again")


@contextmanager
def a_stack(engine: Engine, build: Mapping[str, str], **variables: str) -> Iterator[Stack]:
    """Nothing of it is left at the end, volumes included."""
    stack = Stack(engine, build, **variables)
    stack.compose("down", "--volumes", "--timeout", "3")
    try:
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "3")
        stack.client.close()
