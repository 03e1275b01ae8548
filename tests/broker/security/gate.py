"""A live broker behind a gate: a real driver and socket on loopback, with keys, and raw clients that knock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from broker.core.events import Started
from broker.driver import Driver
from broker.handshake import arm
from broker.journal import Journal
from broker.keys import ClientKeys, KeyDirectory, read_pair
from broker.reports import Reports
from broker.transport import Transport
from schemas.codec import decode_broker_message, encode_message
from schemas.edges import Role
from schemas.messages import BrokerMessage, ClientMessage, Status, StatusAsked
from tests.broker.edge_doubles import a_hello
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

MAX_FRAME_BYTES = 1 << 20


class Gate:
    """A driver in its own thread. `keys` None: it asks for none."""

    def __init__(self, folder: Path, keys: KeyDirectory | None) -> None:
        self.keys, self.run = keys, folder / "run"
        self.run.mkdir(parents=True)
        self.transport = Transport("tcp://127.0.0.1:*", MAX_FRAME_BYTES, keys)
        self.endpoint = self.transport.endpoint
        self._journal, self._reports = Journal(self.run / "journal"), Reports(self.run)
        started = Started(config=a_run_config(folder), run_directory=str(self.run))
        self.driver = Driver(self._journal, self.transport, self._reports, started)
        self.error: BaseException | None = None
        self.ended = False
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            while not self._over.is_set() and not self.ended:
                self.driver.turn()
                self.ended = not self.driver._running  # a run that is over by itself
        except BaseException as error:
            self.error = error
            raise

    def client(self, name: str) -> ClientKeys:
        """The keys of a client made before."""
        assert self.keys is not None
        return ClientKeys(read_pair(self.keys.client_file(name)), self.keys.server().public)

    def close(self) -> None:
        """Fails where the loop has failed before."""
        self._over.set()
        until(lambda: not self.thread.is_alive(), "the driver ends")
        self.driver.close()
        self._reports.close()
        assert self.error is None


class Knocker:
    """A raw DEALER that says what it is told to."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, identity: bytes, keys: ClientKeys | None) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, identity)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = 0
        arm(self.socket, endpoint, keys)
        self.socket.connect(endpoint)

    def say(self, *messages: ClientMessage) -> None:
        for message in messages:
            self.socket.send(encode_message(message))

    def hear(self, patience_s: float = 20.0) -> BrokerMessage:
        assert self.socket.poll(int(1000 * patience_s)), "the broker says nothing"
        return decode_broker_message(self.socket.recv_multipart()[0])

    def hear_a(self, kind: type) -> Any:
        """The next message of that kind; others are passed over."""
        while not isinstance(found := self.hear(), kind):
            pass
        return found

    def ask_status(self) -> Status:
        self.say(StatusAsked())
        return self.hear_a(Status)

    def hello(self, role: Role, name: str, **fields: Any) -> BrokerMessage:
        self.say(a_hello(role, name, **fields))
        return self.hear()


@contextmanager
def a_gate(folder: Path, **allowed: tuple[Role, ...]) -> Iterator[Gate]:
    """A broker with a key for each name given, and its roles."""
    keys = KeyDirectory(folder / "keys")
    for name, roles in allowed.items():
        keys.new(name, roles)
    made = Gate(folder, keys)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def an_open_gate(folder: Path) -> Iterator[Gate]:
    """A broker on loopback that asks for no keys."""
    made = Gate(folder, None)
    try:
        yield made
    finally:
        made.close()


class Street:
    """Makes knockers in one context, and takes all of them away."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._context.max_sockets = 4096
        self._sockets: list[zmq.Socket[bytes]] = []

    def knock(self, endpoint: str, identity: str | bytes, keys: ClientKeys | None = None) -> Knocker:
        made = Knocker(self._context, endpoint, identity.encode() if isinstance(identity, str) else identity, keys)
        self._sockets.append(made.socket)
        return made

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.destroy(linger=0)
