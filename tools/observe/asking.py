"""One question at a time to a broker that may be dead. Needs no hello, waits no longer than it is told to."""

from __future__ import annotations

import secrets
import time
from types import TracebackType

import zmq

from schemas.codec import Frame, decode_broker_message, encode_message
from schemas.messages import BrokerMessage, ClientMessage

Answer = tuple[BrokerMessage, list[Frame]]
PATIENCE_S = 3.0
"""A broker answers within milliseconds, one that is busy with a checkpoint within a second."""


class Asking:
    """A DEALER socket for questions. Used as a context manager."""

    def __init__(self, endpoint: str, name: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.identity = f"{name}/{secrets.token_hex(8)}".encode()
        self._socket.linger = 0
        self._socket.connect(endpoint)

    def ask(self, question: ClientMessage, kind: type[BrokerMessage], patience_s: float = PATIENCE_S) -> Answer | None:
        """The answer of that kind and the frames that follow it; None where none came in time.

        Raises WireError for what is no message.
        """
        self._socket.send(encode_message(question), zmq.DONTWAIT)
        deadline = time.monotonic() + patience_s
        while (left_s := deadline - time.monotonic()) > 0:
            if self._socket.poll(int(1000 * left_s) + 1):
                first, *frames = self._socket.recv_multipart()
                answer = decode_broker_message(first)
                if isinstance(answer, kind):
                    return answer, list(frames)
        return None

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()
        self._context.term()
