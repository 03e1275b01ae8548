"""One question at a time to a broker that may be dead. Needs no hello, waits no longer than it is told to."""

from __future__ import annotations

import secrets
import time
from types import TracebackType

import zmq
from zmq.utils.monitor import recv_monitor_message

from broker.handshake import FAILURES, Handshakes, arm
from broker.keys import ClientKeys
from schemas.codec import Frame, decode_broker_message, encode_message
from schemas.errors import BrokerRefusedError
from schemas.messages import BrokerMessage, ClientMessage, Refuse

Answer = tuple[BrokerMessage, list[Frame]]
PATIENCE_S = 3.0
"""A broker answers within milliseconds, one that is busy with a checkpoint within a second."""


class Asking:
    """A DEALER socket for questions. Used as a context manager."""

    def __init__(self, endpoint: str, name: str, keys: ClientKeys | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.identity = f"{name}/{secrets.token_hex(8)}".encode()
        self._socket.linger = 0
        self._handshakes = Handshakes(endpoint, with_keys=arm(self._socket, endpoint, keys))
        self._line: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | FAILURES)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._line, zmq.POLLIN)
        self._socket.connect(endpoint)

    def ask(self, question: ClientMessage, kind: type[BrokerMessage], patience_s: float = PATIENCE_S) -> Answer | None:
        """The answer of that kind and the frames that follow it; None where none came in time.

        Raises WireError for what is no message, BrokerRefusedError where the broker will not have this process.
        """
        try:
            self._socket.send(encode_message(question), zmq.DONTWAIT)
        except zmq.Again:  # libzmq gives a connection up for good where the key was refused, and then only
            raise BrokerRefusedError("the broker does not know this key (any more); see tidemill keys list") from None
        deadline = time.monotonic() + patience_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = dict(self._poller.poll(int(1000 * left_s) + 1))
            if self._line in ready:
                self._watch_the_line()
            if self._socket in ready:
                first, *frames = self._socket.recv_multipart()
                answer = decode_broker_message(first)
                if isinstance(answer, kind):
                    return answer, list(frames)
                if isinstance(answer, Refuse):
                    raise BrokerRefusedError(f"the broker refused ({answer.reason}): {answer.detail}")
        return None

    def _watch_the_line(self) -> None:
        refusal = self._handshakes.judge(recv_monitor_message(self._line)["event"])
        if refusal is not None:
            raise BrokerRefusedError(refusal)

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.disable_monitor()
        self._line.close()
        self._socket.close()
        self._context.term()
