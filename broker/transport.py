"""The broker's one socket: a ROUTER, and nothing else in the project binds.

Bounds: frames above `max_frame_bytes` close their connection; what the broker sends is bounded by credits, so the high-water marks are off and
nothing is dropped for want of room. A peer that is gone is an answer (`False`), never an exception or a block.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Sequence

import zmq

from schemas.codec import Frame
from schemas.errors import ConfigError

DRAIN_MESSAGES = 512
"""Messages taken per turn of the loop: one group commit's worth."""
DRAIN_BYTES = 8 << 20
LINGER_MS = 500
"""The last orders of a run leave within this; a peer that is gone does not hold the broker longer."""
ZERO_COPY_BYTES = 65_536
"""From here on handing the buffer to the I/O thread is cheaper than a copy."""
WANTED_FILES = 65_536


class Transport:
    """Binds `endpoint`; raises ConfigError where that cannot be had."""

    def __init__(self, endpoint: str, max_frame_bytes: int) -> None:
        _raise_file_limit()
        _check_that_nobody_listens(endpoint)
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.RCVHWM, 0)
        self._router.setsockopt(zmq.LINGER, LINGER_MS)
        self._router.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self._router.setsockopt(zmq.BACKLOG, 4096)
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"broker.endpoint {endpoint}: {error.strerror}; is another broker using it?") from error
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)

    def watch(self, descriptor: int) -> None:
        """`receive` also returns once `descriptor` is readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def receive(self, timeout_s: float) -> list[tuple[bytes, list[bytes]]]:
        """Waits up to `timeout_s`, then takes what is there, bounded: (routing id, frames) in order of arrival."""
        if self._router not in dict(self._poller.poll(max(0, int(timeout_s * 1000)))):
            return []
        taken: list[tuple[bytes, list[bytes]]] = []
        size = 0
        while len(taken) < DRAIN_MESSAGES and size < DRAIN_BYTES:
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            taken.append((identity, frames))
            size += sum(map(len, frames))
        return taken

    def send(self, identity: bytes, frames: Sequence[Frame]) -> bool:
        """False where the peer is not there."""
        try:
            self._router.send_multipart([identity, *frames], zmq.NOBLOCK, copy=max(map(len, frames)) < ZERO_COPY_BYTES)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Sends what is left, within `LINGER_MS`."""
        self._router.close()
        self._context.term()


def _check_that_nobody_listens(endpoint: str) -> None:
    """ipc only: libzmq takes a socket file away from whoever listens on it, without a word. A dead broker's file refuses the connection."""
    if not endpoint.startswith("ipc://"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(endpoint.removeprefix("ipc://"))
        except OSError:
            return
    raise ConfigError(f"broker.endpoint {endpoint}: another process listens there; end it or choose another path")


def _raise_file_limit() -> None:
    """Every client is a descriptor, and a ROUTER without any left aborts the process (ipc)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
