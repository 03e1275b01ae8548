"""A receiver's connection to one source: questions out, answers in, and what went wrong in words.

Owns one DEALER and its monitor. A cut, a refused key or an answer that is none ends the line: `receive` says so once, as `Broken`.
"""

from __future__ import annotations

import zmq
from msgspec import Struct
from zmq.utils.monitor import recv_monitor_message

from broker.handshake import FAILURES, arm
from broker.keys import ClientKeys
from schemas.errors import WireError
from schemas.messages import Source
from stages.blobs import wire

UNSENT_MESSAGES = 256
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | FAILURES


class Broken(Struct, frozen=True):
    """This line carries nothing any more."""

    reason: str


Received = tuple[wire.Answer, zmq.Frame | None]


class Line:
    """Connects at once; `receive` waits."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], source: Source, keys: ClientKeys | None) -> None:
        self.source = source
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, UNSENT_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # what was asked for bounds it
        self._socket.setsockopt(zmq.MAXMSGSIZE, wire.ANSWER_BYTES_MAX)
        keys = ClientKeys(keys.pair, source.public) if keys is not None and source.public else None
        arm(self._socket, source.endpoint, keys)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(EVENTS)
        self._socket.connect(source.endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._connected = False

    def ask(self, question: wire.Question) -> None:
        """Waits in the socket until there is a connection."""
        self._socket.send(wire.encode(question), zmq.NOBLOCK)

    def receive(self, timeout_s: float) -> list[Received] | Broken:
        """What has come, within `timeout_s`."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        found: list[Received] = []
        try:
            while True:
                found.append(self._next())
        except zmq.Again:
            pass
        except WireError as error:
            return Broken(str(error))
        if not found and self._monitor in ready and (reason := self._watch()) is not None:
            return Broken(reason)
        return found

    def _next(self) -> Received:
        first, *rest = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        answer = wire.decode_answer(bytes(first.buffer))
        carries = isinstance(answer, wire.Outlined | wire.Chunked)
        if len(rest) != int(carries):
            raise WireError(f"an answer {type(answer).__name__} of {1 + len(rest)} frames")
        return answer, rest[0] if carries else None

    def _watch(self) -> str | None:
        """A cut loses the questions that were on the way: the line is given up, and asked anew by whoever wants more."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return "it does not let our key in"
            if event & FAILURES:
                return "the two do not agree about keys, or it serves no blobs"
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
            elif event == zmq.EVENT_DISCONNECTED and self._connected:
                return "the connection was cut"
            elif event == zmq.EVENT_CONNECT_RETRIED and not self._connected:
                return "nobody listens there, or the network does not lead there"
        return None

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close(linger=0)
