"""A client's side of the door: its keys on its socket, and what a refused handshake means.

libzmq tries again for ever and says nothing; `Handshakes` tells a broker that is not there (wait) from one that will not have this client
(give up, and say why). Pure but for `arm`.
"""

from __future__ import annotations

import zmq

from broker.keys import KEY_VARIABLE, SERVER_KEY_VARIABLE, ClientKeys

FAILURES = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
"""Events that a monitor has to ask for."""
UNEXPLAINED_MAX = 4
"""Handshakes in a row that end without a reason: one happens when a broker dies; at 20 a second four are clear within half a second."""
OUTSIDE = (
    "keys are made where the broker runs: tidemill keys new NAME; they are given by --key and --server-key, or "
    f"{KEY_VARIABLE} and {SERVER_KEY_VARIABLE}"
)


def arm(socket: zmq.Socket[bytes], endpoint: str, keys: ClientKeys | None) -> bool:
    """Sets `keys` on a socket that is about to connect; False where none are used: on ipc the file system keeps others out."""
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    if keys is None or not endpoint.startswith("tcp://"):
        return False
    socket.curve_publickey, socket.curve_secretkey = keys.pair.public.encode(), keys.pair.secret.encode()
    socket.curve_serverkey = keys.server.encode()
    return True


class Handshakes:
    """Judges what a client socket's monitor reports, one event after the other."""

    def __init__(self, endpoint: str, *, with_keys: bool) -> None:
        self._endpoint = endpoint
        self._with_keys = with_keys
        self._unexplained = 0

    def judge(self, event: int) -> str | None:
        """Why the broker will not have this client; None while there is hope."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._unexplained = 0
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return f"the broker at {self._endpoint} does not know this key, or it was revoked; {OUTSIDE}"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return self._mismatch()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._unexplained += 1
            if self._unexplained >= UNEXPLAINED_MAX:
                return self._mismatch()
        return None

    def _mismatch(self) -> str:
        if self._with_keys:
            return (f"whoever listens at {self._endpoint} has not the server key that was given, asks for none, or is no broker; "
                    f"compare it with server.pub of the broker's keys")  # fmt: skip
        return f"the broker at {self._endpoint} asks for a key, or is no broker; {OUTSIDE}"
