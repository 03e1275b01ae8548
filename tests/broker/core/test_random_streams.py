"""Random streams of events, sensible and not: nothing that a client says may break a promise or stop the core."""

from collections.abc import Callable
from random import Random

import pytest

from broker.core.ledger import in_flight
from broker.core.state import Phase
from schemas import messages as wire
from schemas.edges import EDGES
from schemas.header import Header
from tests.broker.core.mill import ALL, Mill, a_header

MakeMill = Callable[..., Mill]

CLIENTS = (*ALL, "env-2", "rollout-2", "reward-2", "host", "observer")
PROCESSES = tuple(name for name in CLIENTS if name != "trainer")
QUEUE_OF_NEXT = {"tickets": "turns", "turns": "actions", "actions": "turns", "episodes": "scored", "scored": "samples"}


class Chaos:
    """Draws events from `rng`, most of which make sense at the time."""

    def __init__(self, mill: Mill, rng: Random) -> None:
        self.mill, self.rng = mill, rng
        self.process = 0

    def event(self) -> None:
        """One."""
        kinds = [self.work] * 80 + [self.train] * 12 + [self.nonsense] * 8 + [self.time] * 6 + [self.come] * 2 + [self.go] * 1 + [self.cut]
        self.rng.choice(kinds)()

    def a_client(self) -> str:
        return self.rng.choice(list(self.mill.state.clients) or ["env-1"])

    def work(self) -> None:
        """A holder answers a lease as it should, or fails it."""
        leases = list(self.mill.state.leases.values())
        if not leases:
            return
        lease = self.rng.choice(leases)
        header = self.mill.state.messages[lease.message].header
        if header.ticket is not None and self.rng.random() < 0.03:
            self.mill.commit(lease.client, fails=[wire.Failure(lease=lease.id, boundary="drawn", reason="by chance")])
        else:
            self.answer(lease.client, lease.id, header)

    def answer(self, client: str, lease: int, header: Header) -> None:
        ticket = self.mill.state.tickets.get(header.ticket or 0)
        if header.queue == "versions" or ticket is None:
            put = a_header("installs", newest_version=header.newest_version, weights=header.weights)
            self.mill.commit(client, acks=[lease], puts=[put])
            return
        session = self.mill.state.sessions.get(ticket.id)
        acks, queue = [lease], QUEUE_OF_NEXT[header.queue]
        if header.queue == "tickets":
            if session is not None:
                return
            acks = []
        elif header.queue == "actions" and self.rng.random() < 0.5:
            queue = "episodes"
            acks.append(self.mill.state.messages[ticket.message].lease or 0)
        version = max(self.mill.state.trainer.digests, default=0)
        put = a_header(queue, ticket=ticket.id, group=ticket.group, member=ticket.member, attempt=ticket.attempt, purpose=ticket.purpose,
                       turn=0, new_tokens=3, trainable_tokens=2, oldest_version=version, newest_version=version,
                       reward=float(self.rng.random() < 0.5))  # fmt: skip
        self.mill.commit(client, acks=acks, puts=[put])

    def train(self) -> None:
        """The trainer goes on, and replicas install."""
        state = self.mill.state
        for client in list(state.clients.values()):
            install = state.installs.get(-1 if client.offered is None else client.offered)
            if install is not None and self.rng.random() < 0.7:
                self.mill.send(client.name, wire.Receipt(lineage=0, number=install.number, digest=install.digest))
                self.mill.send(client.name, wire.Credit(queue="turns", window=8))
        if "trainer" not in state.clients:
            return
        sent = [step for step in state.steps.values() if step.sent]
        if sent and self.rng.random() < 0.8:
            step = min(sent, key=lambda step: step.step).step
            self.mill.vote(step, ok=self.rng.random() < 0.9)
            if state.steps[step].committed:
                if self.rng.random() < 0.8:
                    self.mill.send("trainer", wire.CheckpointSaved(step=step))
                self.publish(step)
        elif not sent:
            self.publish(state.trainer.checkpoint)

    def publish(self, number: int) -> None:
        digest = f"w{number}" if self.rng.random() < 0.98 else f"other{self.process}"
        self.mill.commit("trainer", puts=[a_header("versions", newest_version=number, weights=digest)])

    def nonsense(self) -> None:
        """What no stage says at that time."""
        client, rng = self.a_client(), self.rng
        leases = tuple(rng.sample(range(1, self.mill.state.next_lease + 3), min(3, self.mill.state.next_lease)))
        queue = rng.choice(list(EDGES))
        put = a_header(queue, ticket=rng.choice([None, rng.randrange(9)]), group=rng.randrange(4), member=rng.randrange(3),
                       attempt=rng.randrange(4), newest_version=rng.choice([None, 1]))  # fmt: skip
        message: wire.Numbered = rng.choice([
            wire.Commit(acks=leases, puts=(put,)), wire.Commit(puts=(put, put)), wire.Commit(acks=leases),
            wire.Commit(fails=tuple(wire.Failure(lease=lease, boundary="b", reason="r") for lease in leases)),
            wire.Credit(queue=rng.choice([queue, "nonsense"]), window=rng.randrange(-1, 9)), wire.GrantAsked(),
            wire.GrantReleased(grant=rng.randrange(5)), wire.Voted(step=rng.randrange(5), ok=True), wire.Drained(),
            wire.Receipt(lineage=0, number=rng.randrange(4), digest="wrong"), wire.InstallFailed(number=0, reason="r"),
        ])  # fmt: skip
        if client in self.mill.state.clients and (client != "trainer" or not isinstance(message, wire.Voted | wire.Commit)):
            self.mill.send(client, message)

    def time(self) -> None:
        for client in list(self.mill.state.clients):
            if self.rng.random() < 0.8:
                self.mill.say(client, wire.Heartbeat())
        self.mill.tick(self.rng.choice([0.1, 0.5, 2.0]))

    def come(self) -> None:
        """A process starts, or one comes back."""
        name = self.rng.choice(CLIENTS)
        resume = self.mill.state.trainer.checkpoint if name == "trainer" else None
        if self.rng.random() < 0.5 or name not in self.mill.state.clients:
            self.process += 1
            windows = {"windows": {}} if name.startswith("rollout") else {}
            self.mill.hello(name, incarnation=f"p{self.process}", resume_step=resume, **windows)
            return
        client = self.mill.state.clients[name]
        held = [lease.id for lease in self.mill.state.leases.values() if lease.client == name]
        kept = tuple(lease for lease in held if self.rng.random() < 0.9)
        self.mill.hello(name, holds=kept, resume_step=resume, installed=client.installed, ready=self.rng.random() < 0.9)

    def go(self) -> None:
        name = self.rng.choice(PROCESSES)
        if name in self.mill.state.clients and self.rng.random() < 0.5:
            self.mill.say(name, wire.Bye())
        elif "host" in self.mill.state.clients:
            self.mill.send("host", wire.ProcessExited(name=name, code=-9))

    def cut(self) -> None:
        """The broker dies: half of the clients notice at once."""
        self.mill.restart()


@pytest.mark.parametrize("seed", range(40))
def test_no_stream_of_events_breaks_a_promise(a_mill: MakeMill, seed: int) -> None:
    print(f"seed {seed}")
    rng = Random(seed)
    mill = a_mill(
        schedule__kind=rng.choice(["async", "sync"]), schedule__groups_per_step=rng.choice([1, 2]), schedule__members=rng.choice([2, 3]),
        schedule__steps=4, schedule__drop_uniform=rng.random() < 0.5, evaluation__at_start=rng.random() < 0.5,
        evaluation__at_end=rng.random() < 0.5, evaluation__problems=2, algorithm__kl_coefficient=rng.choice([0.0, 0.1]),
        broker__max_deliveries=rng.choice([3, 50]), stages__env__sessions=4,
    )  # fmt: skip
    chaos = Chaos(mill, rng)
    for name in CLIENTS:
        mill.hello(name, **({"windows": {}} if name.startswith("rollout") else {}))
    for _ in range(800):
        chaos.event()
    if mill.state.phase is not Phase.CLOSED:
        mill.say("observer", wire.StopAsked())
        for _ in range(60):
            mill.tick(0.1)
    assert mill.state.phase is Phase.CLOSED
    assert in_flight(mill.state) == 0
    assert mill.state.ledger.charged == 0
