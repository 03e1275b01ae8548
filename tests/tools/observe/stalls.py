"""Stages of the skeleton that each bring a run to a halt in a way of their own."""

from __future__ import annotations

import threading

from schemas.edges import Role
from schemas.messages import BrokerMessage, Failure, GrantAsked, InstallOrder, Plan, ProcessExited, Welcome
from stages.service.stage import Delivery, Link, Ready
from tests.skeleton.peer import Peer
from tests.skeleton.stages import FakeEnv, FakeReference, FakeReward, FakeRollout, FakeTrainer

SLOT = ("cpu:0",)


class HungStep(FakeEnv):
    """Its step function never returns."""

    def answer(self, delivery: Delivery) -> None:
        if delivery.header.queue != "actions":
            super().answer(delivery)


class HungReset(FakeEnv):
    """Not even its reset returns."""

    def answer(self, delivery: Delivery) -> None:
        """Never."""


class OneStraggler(FakeEnv):
    """Plays all sessions but one: member 1 of the first training group hangs in its first step."""

    stuck: int | None = None

    def answer(self, delivery: Delivery) -> None:
        header = delivery.header
        if header.purpose == "train" and header.member == 1 and self.stuck is None:
            self.stuck = header.ticket
        if header.queue == "tickets" or header.ticket != self.stuck:
            super().answer(delivery)


class NoReceipt(FakeRollout):
    """Takes install orders and says nothing."""

    def order(self, message: BrokerMessage, frames: object) -> None:
        if not isinstance(message, InstallOrder):
            super().order(message, frames)  # type: ignore[arg-type]


class NoWindow(FakeRollout):
    """Is ready, and lets no turn come."""

    def hello(self) -> Ready:
        return Ready(windows={"turns": 0}, installed=self.installed)


class HungReward(FakeReward):
    """Its thread stands still, heartbeats and all, until `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def answer(self, delivery: Delivery) -> None:
        self.free.wait(60.0)


class FailingReward(FakeReward):
    """Its verifier raises on every episode, or on the first `limit` and hangs then."""

    limit = 1_000_000

    def answer(self, delivery: Delivery) -> None:
        if self.answered >= self.limit:
            return
        self.link.commit(fails=[Failure(lease=delivery.lease, boundary="verifier", reason="ZeroDivisionError: division by zero")])


class KeepsSlot(FakeReference):
    """Asks for the slot at its start and never releases it."""

    def start(self, welcome: Welcome, link: Link) -> None:
        super().start(welcome, link)
        self.asked = False

    def work(self) -> bool:
        if not self.asked:
            self.asked = True
            self.link.send(GrantAsked(slots=SLOT))
        return super().work()


class NeedsSlot(FakeTrainer):
    """Computes on the slot that reference has."""

    def order(self, message: BrokerMessage, frames: object) -> None:
        if isinstance(message, Plan):
            self.in_hand = message
            self.link.send(GrantAsked(slots=SLOT))
        else:
            super().order(message, frames)  # type: ignore[arg-type]


class NoVote(FakeTrainer):
    """Computes for ever."""

    def _vote(self) -> None:
        """Never."""


class NoVersion(FakeTrainer):
    """Is ready, and does not say where it starts from."""

    def _publish(self) -> None:
        """Never."""


class LastExit(Peer):
    """A host that reports a stage's last exit."""

    role = Role.HOST

    def work(self) -> bool:
        if not self.answered:
            self.answered = 1
            self.link.send(ProcessExited(name="rollout-0", code=1, final=True, restarts=5, last_lines=("CUDA out of memory",)))
        return super().work()
