"""What all stages of the skeleton share: a quiet stage that keeps what it was told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas.codec import Frame
from schemas.edges import Role
from schemas.header import Header
from schemas.messages import Abort, BrokerMessage, Welcome
from stages.service.stage import Delivery, Link, Ready

WINDOW = 16
CARRIED = ("ticket", "group", "member", "attempt", "purpose")


def carried(header: Header, *more: str) -> dict[str, Any]:
    """Header fields that go on as they came."""
    return {name: getattr(header, name) for name in (*CARRIED, *more)}


class CrashError(Exception):
    """A stage was told to crash."""


class Peer:
    """Leases `queue`, answers each record in `work` by `answer`. Subclasses fill in the rest."""

    role: Role
    queue: str | None = None
    slow: bool = False
    """Keeps what was delivered and answers nothing, until it is set to False."""

    def __init__(self) -> None:
        self.held: dict[int, Delivery] = {}
        self.orders: list[BrokerMessage] = []
        self.aborted: list[int] = []
        self.answered = 0
        self.crash = False
        self.closed = False

    def start(self, welcome: Welcome, link: Link) -> None:
        self.welcome, self.link = welcome, link

    def hello(self) -> Ready:
        return Ready(windows={self.queue: WINDOW} if self.queue else {})

    def deliver(self, delivery: Delivery) -> None:
        self.held[delivery.lease] = delivery

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        self.orders.append(message)
        if isinstance(message, Abort):
            self.aborted.append(message.lease)
            self.held.pop(message.lease, None)

    def work(self) -> bool:
        if self.crash:
            raise CrashError(f"{self.role} crashes as told")
        if self.held and not self.slow:
            self.answer(self.held.pop(next(iter(self.held))))
            self.answered += 1
        return bool(self.held) and not self.slow

    def answer(self, delivery: Delivery) -> None:
        raise NotImplementedError

    def stats(self) -> dict[str, float]:
        return {"answered_total": float(self.answered)}

    def waiting(self) -> str:
        return "" if self.held else "on the broker"

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def wake_fd(self) -> int | None:
        return None
