"""An observer's way to the broker: asks for its status, asks it to end the run. Needs no hello, never blocks."""

from __future__ import annotations

import secrets

import zmq

from broker.handshake import arm
from broker.keys import ClientKeys
from schemas.codec import decode_broker_message, encode_message
from schemas.errors import BrokerRefusedError
from schemas.messages import ClientMessage, Status, StatusAsked, StopAsked

PATIENCE_S = 2.0
"""A question unanswered for so long is asked again: the broker was restarted, and the question lost with it."""


class BrokerLink:
    """One DEALER socket. It reconnects by itself when the broker is started anew."""

    def __init__(self, endpoint: str, name: str = "up", keys: ClientKeys | None = None) -> None:
        self._endpoint = endpoint
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.identity = f"{name}/{secrets.token_hex(8)}".encode()
        self.socket.linger = 0
        arm(self.socket, endpoint, keys)
        self.socket.connect(endpoint)
        self._asked_at: float | None = None
        self.answered = False
        """True once the broker has said anything."""

    def ask_status(self, now: float) -> None:
        """Asks, unless an answer is still to come."""
        if self._asked_at is None or now - self._asked_at > PATIENCE_S:
            self._asked_at = now
            self._send(StatusAsked())

    def ask_stop(self, reason: str) -> None:
        """Asks the broker to end the run."""
        self._send(StopAsked(reason=reason))

    def statuses(self) -> list[Status]:
        """What has come in, oldest first. Raises WireError for what is no message."""
        found: list[Status] = []
        while self.socket.poll(0):
            message = decode_broker_message(self.socket.recv_multipart()[0])
            self.answered = True
            if isinstance(message, Status):
                self._asked_at = None
                found.append(message)
        return found

    def close(self) -> None:
        """Frees the socket."""
        self.socket.close()
        self._context.term()

    def _send(self, message: ClientMessage) -> None:
        try:
            self.socket.send(encode_message(message), zmq.DONTWAIT)
        except zmq.Again:  # libzmq gives a connection up for good where the key was refused, and then only
            raise BrokerRefusedError(f"{self._endpoint}: the broker does not know this key (any more); see tidemill keys list") from None
