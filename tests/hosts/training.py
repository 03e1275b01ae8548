"""Real training on hosts: the quickstart's pipeline, its broker and trainer on `head`, host agents on the others.

`head` runs `tidemill serve` and a host agent for the roles that write into the run directory; every other host has nothing but a key,
an address and Tidemill itself: its `compose/` is hidden, so that the model has to come over the network.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from broker.core.events import Received
from schemas.edges import Role
from schemas.messages import Receipt
from stages.service.main import EXIT_FENCED
from tests.broker.folding import events_of
from tests.chaos.prey import name_of
from tests.chaos.storm import Result
from tests.chaos.verdict import ORDINARY_EXITS, judge
from tests.hosts.lan import Lan
from tests.hosts.machine import HOUSE, Machine, Process
from tests.hosts.play import HOST_KEYS, KEYS, PORT, carry_key
from tests.skeleton.waiting import until

PIPELINE = HOUSE / "compose" / "pipelines" / "calculator.toml"
RUN = "/tmp/runs/one"
PATIENCE_S = 400.0
"""For anything in a real run on a machine that others use too: whoever waits so long has found a bug."""
SMALL = ("schedule.groups_per_step=8", "evaluation.problems=60")


class Training:
    """`workers` hosts, named `one`, `two` ..., besides `head`."""

    def __init__(self, lan: Lan, workers: int, *overrides: str) -> None:
        self.lan = lan
        self.head = lan.host("head")
        self.endpoint = f"tcp://{self.head.address}:{PORT}"
        self.run = self.head.inside(RUN)
        self._settings = [f"host.wait_for={workers + 1}", "run.directory=/tmp/runs", *overrides]
        carry_key(self.head, self.head)
        self.workers = [self.prepare(name) for name in ("one", "two", "three")[:workers]]

    def prepare(self, name: str) -> Machine:
        """One more host, with a key."""
        machine = self.lan.host(name, hidden=("compose",))
        carry_key(self.head, machine)
        return machine

    def begin(self, clocks: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """The broker and a host agent on each host; `clocks`: more of the environment, by host."""
        clocks = clocks or {}
        self.serve(clocks.get("head"))
        self.join(self.head, "actor-train,weight-sync", clocks.get("head"))
        for machine in self.workers:
            self.join(machine, environment=clocks.get(machine.name))

    def serve(self, environment: Mapping[str, str] | None = None) -> Process:
        """The broker alone."""
        settings = [part for setting in self._settings for part in ("--set", setting)]
        command = ("tidemill", "serve", str(PIPELINE), "--endpoint", self.endpoint, "--name", "one", *settings)
        return self.head.start("serve", *command, environment={"TIDEMILL_KEYS": KEYS, **(environment or {})})

    def join(self, machine: Machine, roles: str = "env,rollout,reward,reference", environment: Mapping[str, str] | None = None) -> Process:
        """A host agent, as a person would start it."""
        command = ("tidemill", "host", "--broker", self.endpoint, "--name", machine.name, "--slots", "cpu:0-1", "--roles", roles)
        return machine.start("host", *command, environment={**HOST_KEYS, **(environment or {})})

    def stage(self, machine: Machine, role: Role) -> Process:
        """One stage by its own command."""
        name = f"{role.value}-0"
        return machine.start(name, "tidemill", role.value, "--broker", self.endpoint, "--name", name, environment=HOST_KEYS)

    @property
    def steps(self) -> int:
        """Committed so far."""
        metrics: Path = self.run / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def wait_for_step(self, step: int) -> None:
        serve = self.head.named("serve")
        until(lambda: self.steps >= step or not serve.at_work, f"step {step} is committed", self.story, PATIENCE_S)
        assert self.steps >= step, self.story()

    def wait_for_note(self, event: str, times: int = 1, **fields: object) -> None:
        """The broker has noted it so often; fails at once where the run is over without."""
        serve, told = self.head.named("serve"), lambda: sum(fields.items() <= note.items() for note in self.notes(event))
        until(lambda: not serve.at_work or told() >= times, f"{event} {fields}", self.story, PATIENCE_S)
        assert told() >= times, f"the run was over before {event} {fields}: {self.story()}"

    def notes(self, event: str) -> list[dict[str, Any]]:
        """Lines of the broker's log about `event`, oldest first."""
        log = self.run / "logs" / "broker.log"
        lines = log.read_text().splitlines() if log.exists() else []
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line.get("event") == event]

    def homes(self) -> dict[str, str]:
        """Where each process was put last."""
        return {note["process"]: note["host"] for kind in ("process_assigned", "process_moved") for note in self.notes(kind)}

    def processes(self, machine: Machine) -> dict[str, psutil.Process]:
        """Stages that run on a host, by their names in the run."""
        return {name: process for process in machine.living() if (name := name_of(process.cmdline())) not in ("", "broker", machine.name)}

    def receipts(self) -> Iterator[tuple[str, Receipt]]:
        """Each replica's, oldest first, as the journal has them."""
        for event in events_of(self.run):
            if isinstance(event, Received) and isinstance(event.message, Receipt):
                yield event.sender.partition("/")[0], event.message

    def fetched(self) -> dict[tuple[str, int], list[int]]:
        """Bytes that came over the network for a version, by host and version: what each replica there fetched of it."""
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        homes = self.homes()
        for replica, receipt in self.receipts():
            found[homes[replica], receipt.number].append(int(receipt.metrics.get("bytes", 0)))
        return dict(found)

    def version_bytes(self) -> int:
        """Of the largest version that is kept."""
        return max(sum(file.stat().st_size for file in folder.iterdir()) for folder in (self.run / "versions").iterdir() if folder.is_dir())

    def check_the_end(self, least_accuracy: float | None = None) -> None:
        """The run reached its steps; its journal, folded again, keeps every promise; nothing is left on any host.

        Processes of a host that comes back may end as fenced: their names are at work elsewhere.
        """
        code = self.head.named("serve").wait(PATIENCE_S)
        verdict = judge(Result(self.run, code, 0.0), least_accuracy, (*ORDINARY_EXITS, EXIT_FENCED))
        print(*verdict.told, sep="\n")
        assert not verdict.wrong, f"{verdict.wrong}\n{self.story()}"
        for machine in self.lan.hosts.values():
            until(lambda machine=machine: not self.processes(machine), f"stages on {machine.name} end", self.story)  # type: ignore[misc]

    def story(self) -> str:
        logs = [
            *self.run.glob("logs/*.log"),
            *(log for machine in self.workers for log in machine.world.glob("home/.cache/tidemill/**/*.log")),
        ]
        ends = "\n".join(f"--- {log}\n{log.read_text()[-1500:]}" for log in logs)
        return f"{self.steps} steps\n{self.lan.story()}\n{ends}"
