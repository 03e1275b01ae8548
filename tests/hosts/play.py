"""A run on hosts: its broker with keys on one of them, stages by their own commands on any, each with a key of its host.

Owns nothing that the network does not own. What a person would carry from machine to machine by hand (a key, an address) is
carried here, and nothing else.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.edges import Role
from tests.hosts.machine import HOME, HOUSE, Machine, Process
from tests.skeleton.waiting import until

KEYS = "/tmp/home/.config/tidemill/keys"
RUN = "/tmp/run"
HOST_KEYS = {"TIDEMILL_KEY": f"{HOME}/host.key", "TIDEMILL_SERVER_KEY": f"{HOME}/server.pub"}
"""The environment by which a process finds the keys of its host."""
PORT = 7700


def carry_key(head: Machine, machine: Machine, *roles: Role) -> None:
    """Makes a key for a host where the broker runs, and carries it there with the broker's public one."""
    limits = [part for role in roles for part in ("--role", role.value)]
    made = head.call("tidemill", "keys", "new", machine.name, *limits)
    assert made.returncode == 0, made.stderr
    keys = head.inside(KEYS)
    for file, place, mode in ((keys / "clients" / f"{machine.name}.key", "host.key", 0o600), (keys / "server.pub", "server.pub", 0o644)):
        there = machine.inside(f"{HOME}/{place}")
        shutil.copyfile(file, there)
        there.chmod(mode)


class Play:
    """`head` is the broker's host."""

    def __init__(self, head: Machine, config: dict[str, Any]) -> None:
        self.head = head
        self.endpoint = f"tcp://{head.address}:{PORT}"
        self.run = head.inside(RUN)
        (head.world / "config.json").write_text(json.dumps(config))
        self.let_in(head)

    def let_in(self, machine: Machine, *roles: Role) -> None:
        """A key for a host, limited to `roles`."""
        carry_key(self.head, machine, *roles)

    def start_broker(self) -> Process:
        """Returns once it listens."""
        (self.run / "endpoint").unlink(missing_ok=True)
        places = ("--run-directory", RUN, "--config", "/tmp/config.json", "--endpoint", self.endpoint)
        broker = self.head.start("broker", "tidemill", "broker", *places)
        until(lambda: (self.run / "endpoint").exists() or not broker.at_work, "the broker listens", broker.story)
        assert broker.at_work, broker.story()
        return broker

    def skeleton(self, machine: Machine, role: Role, index: int = 0, environment: Mapping[str, str] | None = None) -> Process:
        """A stage whose work is a few lines."""
        name = f"{role.value}-{index}"
        command = (sys.executable, "-m", "tests.skeleton", role.value, "--broker", self.endpoint, "--name", name)
        return machine.start(name, *command, environment={"PYTHONPATH": str(HOUSE), **HOST_KEYS, **(environment or {})})

    def stage(self, machine: Machine, role: Role, index: int = 0, environment: Mapping[str, str] | None = None) -> Process:
        """The real one, by its own command."""
        name = f"{role.value}-{index}"
        command = ("tidemill", role.value, "--broker", self.endpoint, "--name", name)
        return machine.start(name, *command, environment={**HOST_KEYS, **(environment or {})})

    @property
    def steps(self) -> int:
        """Committed so far."""
        metrics: Path = self.run / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def wait_for_step(self, step: int, patience_s: float = 60.0) -> None:
        until(lambda: self.steps >= step, f"step {step} is committed", self.story, patience_s)

    def notes(self, event: str) -> list[dict[str, Any]]:
        """Lines of the broker's log about `event`, oldest first."""
        lines = self.head.named("broker").log.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line.get("event") == event]

    def lost(self, name: str) -> bool:
        """Whether the broker has given a client up."""
        return any(note.get("client") == name for note in self.notes("client_lost"))

    def wait_until_lost(self, name: str) -> None:
        until(lambda: self.lost(name), f"{name} is given up", self.story)

    def story(self) -> str:
        return f"{self.steps} steps; {self.head.named('broker').story()}"
