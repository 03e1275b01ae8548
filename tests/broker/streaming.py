"""A client that streams numbered messages at a broker that dies, and what the journal says of them afterwards."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from broker.client import Client
from broker.core.events import Received, decode_event
from broker.core.state import State
from schemas.edges import Role
from schemas.messages import Credit, Hello
from tests.broker.folding import entries_of
from tests.chaos.account import Account
from tests.skeleton.waiting import until

QUEUE = "episodes"


class Streamer:
    """A reward process of which only the line is real: its credits, each with another window, are the stream."""

    def __init__(self, endpoint: str, name: str = "reward-0") -> None:
        self.name, self.sent = name, 0
        self.client = Client(endpoint, Role.REWARD, name, self._hello)
        self.client.say_hello()

    def _hello(self, base: Hello) -> Hello:
        return replace(base, ready=True, windows={QUEUE: 1})

    def stream(self, count: int) -> None:
        """`count` more messages, numbered on."""
        for _ in range(count):
            self.sent += 1
            self.client.send(Credit(queue=QUEUE, window=self.sent))

    def look(self) -> int:
        """Takes what the broker says; returns how many messages it has not answered for."""
        self.client.poll(0.01)
        return self.client.unanswered

    def wait_until_answered(self, left: int = 0) -> None:
        until(lambda: self.look() <= left, f"all but {left} are answered", lambda: f"{self.client.unanswered} of {self.sent} are not")


def taken(run: Path, name: str) -> list[int]:
    """Windows that the broker took from `name`, in the order of taking; fails where an acknowledged message is unknown."""
    account, windows = Account(), []
    for entry in entries_of(run):
        event = decode_event(entry.event)
        before = next_seq(account.state, name)
        account.take(entry)
        if isinstance(event, Received) and isinstance(event.message, Credit) and next_seq(account.state, name) == before + 1:
            windows.append(event.message.window)
    account.close()
    assert account.broken == []
    return windows


def next_seq(state: State | None, name: str) -> int:
    client = state.clients.get(name) if state is not None else None
    return client.next_seq if client is not None else 0


def whole(count: int) -> list[int]:
    """What is to be taken of a stream of `count`: all, in order, once."""
    return list(range(1, count + 1))
