"""Hosts that come, die, are cut off and come back at random: once it is quiet, every process runs in one place, the one that is recorded.

The hosts here obey and forget as real ones do: an order on a cut line is lost, a refused process is started again, a dead host's processes
are dead. Only the time is not real.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from broker.core.events import Received, Tick
from broker.core.state import Phase
from schemas import messages as wire
from schemas.edges import Role
from schemas.lock import schema_fingerprint
from tests.broker.core.mill import Mill

QUIET_S = 45
"""Longer than a host and then its processes need to be given up."""


@dataclass
class Agent:
    """A host as it really is, whatever the broker thinks of it."""

    name: str
    slots: int
    head: bool
    alive: bool = True
    cut: bool = False
    life: int = 0
    running: dict[str, str] = field(default_factory=dict)
    """Incarnations of its processes."""
    told: bool = False
    """Its present life said hello on its present line."""
    read: int = 0


class Storm:
    """One run of the core and its hosts."""

    def __init__(self, mill: Mill, rng: Random, agents: list[Agent]) -> None:
        self.mill, self.rng = mill, rng
        self.agents = {agent.name: agent for agent in agents}
        self.births = 0

    def second(self) -> None:
        for agent in self.agents.values():
            if agent.alive and not agent.cut:
                self._speak(agent)
        self.mill.now += 1.0
        self.mill.feed(Tick())

    def blow(self) -> None:
        """Something happens to one host."""
        agent = self.rng.choice(list(self.agents.values()))
        match self.rng.randrange(5):
            case 0:
                agent.alive = False
                agent.running.clear()
            case 1:
                agent.cut = True
            case 2 if agent.running:  # one of its processes dies and is started again
                self._born(agent, self.rng.choice(list(agent.running)))
            case 3:
                self.mill.restart()
                for each in self.agents.values():
                    each.told = False
            case _:
                self.mend(agent)

    def mend(self, agent: Agent) -> None:
        if not agent.alive:
            agent.alive, agent.life = True, agent.life + 1
        agent.cut = agent.told = False
        agent.read = len(self.mill.inbox[agent.name])

    def _speak(self, agent: Agent) -> None:
        known = self.mill.state.clients.get(agent.name)
        if not agent.told or known is None or not known.connected:
            slots, place = tuple(f"cpu:{number}" for number in range(agent.slots)), "" if agent.head else f"/{agent.name}"
            running = dict.fromkeys(agent.running, 1)
            self._hello(agent.name, f"life{agent.life}", Role.HOST, slots=slots, running=running, directory=place, place=agent.name)
            agent.told = True
        self._beat(agent.name, f"life{agent.life}")
        self._obey(agent)
        for name, incarnation in list(agent.running.items()):
            client = self.mill.state.clients.get(name)
            if client is not None and client.connected and client.incarnation == incarnation:
                self._beat(name, incarnation)
            else:
                self._stage_hello(agent, name, incarnation)

    def _obey(self, agent: Agent) -> None:
        orders, agent.read = self.mill.inbox[agent.name][agent.read :], len(self.mill.inbox[agent.name])
        for order in orders:
            if isinstance(order, wire.StartProcess) and order.name not in agent.running:
                self._born(agent, order.name)
            elif isinstance(order, wire.StopProcess) and order.name:
                agent.running.pop(order.name, None)

    def _born(self, agent: Agent, name: str) -> None:
        self.births += 1
        agent.running[name] = f"born{self.births}"

    def _stage_hello(self, agent: Agent, name: str, incarnation: str) -> None:
        before = len(self.mill.replies)
        role = Role(name.rpartition("-")[0])
        self._hello(name, incarnation, role, host=agent.name)
        refusals = [reply for reply in self.mill.replies[before:] if isinstance(reply, wire.Refuse) and reply.fatal]
        if refusals:
            assert {refusal.reason for refusal in refusals} <= {"fenced", "name"}, refusals
            self._born(agent, name)  # its host starts it again, until it is told to leave it

    def _hello(self, name: str, incarnation: str, role: Role, **fields: object) -> None:
        said = {"protocol": wire.PROTOCOL_VERSION, "schema": schema_fingerprint(), "role": role, "name": name, "incarnation": incarnation,
                "pipeline": "", "ready": True}  # fmt: skip
        self.mill.feed(Received(sender=f"{name}/{incarnation}", message=wire.Hello(**{**said, **fields})))  # type: ignore[arg-type]

    def _beat(self, name: str, incarnation: str) -> None:
        self.mill.feed(Received(sender=f"{name}/{incarnation}", message=wire.Heartbeat()))


def a_storm(seed: int) -> Storm:
    rng = Random(seed)
    mill = Mill(
        host__wait_for=rng.choice([1, 2, 3]), host__return_s=10_000.0, stages__env__replicas=rng.choice([1, 3]),
        stages__rollout__replicas=rng.choice([1, 2, 4]), stages__rollout__replicas_max=rng.choice([0, 5]), broker__grace_s=2.0,
    )  # fmt: skip
    far = [Agent(f"far{number}", slots=rng.choice([1, 2, 4]), head=False) for number in range(3)]
    return Storm(mill, rng, [Agent("head", slots=rng.choice([1, 2]), head=True), *far])


@pytest.mark.parametrize("seed", range(30))
def test_after_any_storm_every_process_runs_once_and_where_it_is_recorded(seed: int) -> None:
    print(f"seed {seed}")
    storm = a_storm(seed)
    for _ in range(120):
        if storm.rng.random() < 0.25:
            storm.blow()
        storm.second()
        assert storm.mill.state.failure is None
    for agent in storm.agents.values():
        if agent.head or storm.rng.random() < 0.7:
            storm.mend(agent)
        else:
            agent.alive = False
            agent.running.clear()
    for _ in range(QUIET_S):
        storm.second()
    _check(storm)
    storm.mill.check_fold()


def _check(storm: Storm) -> None:
    state = storm.mill.state
    assert state.phase is Phase.STARTING
    real = [(name, agent.name) for agent in storm.agents.values() if agent.alive for name in agent.running]
    recorded = [(process.name, process.host) for process in state.processes.values() if storm.agents[process.host or "head"].alive]
    there = [pair for pair in recorded if pair[1]]
    assert sorted(real) == sorted(there)
    for name, host in real:
        assert (state.clients[name].connected, state.clients[name].host) == (True, host)
    waiting = {process.role for process in state.processes.values()} - {name.rpartition("-")[0] for name, _ in real}
    assert waiting == set()
    slots = [(process.host, slot) for process in state.processes.values() if process.role == "rollout" for slot in process.slots]
    alive = [pair for pair in slots if storm.agents[pair[0]].alive]
    assert len(alive) == len(set(alive))
