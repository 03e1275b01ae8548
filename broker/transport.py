"""The broker's one socket: a ROUTER, and nothing else in the project binds.

Bounds: frames above `max_frame_bytes` close their connection; a connection is read no further while `UNREAD_MESSAGES`
of it wait, and one that leaves `UNSENT_MESSAGES` lying is reported by `take_choked`: credits keep every client that
reads far below. A peer that is gone is an answer (`False`), never an exception or a block. With keys, what arrives is
from somebody on the allow-list who introduced that routing id.
"""

from __future__ import annotations

import functools
import os
import resource
import socket
import stat
from collections.abc import Sequence

import zmq

from broker.doorkeeper import Doorkeeper
from broker.keys import Allowed, KeyDirectory
from schemas.codec import Frame, encode_message
from schemas.config.broker import is_routable
from schemas.errors import ConfigError
from schemas.messages import Refuse

DRAIN_MESSAGES = 512
"""Messages taken per turn of the loop: one group commit's worth."""
DRAIN_BYTES = 8 << 20
LINGER_MS = 500
"""The last orders of a run leave within this; a peer that is gone does not hold the broker longer."""
ZERO_COPY_BYTES = 65_536
"""From here on handing the buffer to the I/O thread is cheaper than a copy."""
VIEW_BYTES = 8_193
"""Frames from here on stay where the socket received them. Smaller ones share a block of 8 KiB with their neighbours:
kept for long, each would hold all of it."""
MORE = zmq.NOBLOCK | zmq.SNDMORE
WANTED_FILES = 65_536
UNREAD_MESSAGES = 1_000
"""Messages of one connection that wait in memory; then its sender waits. libzmq counts whole messages only."""
UNSENT_MESSAGES = 16_384
"""Messages to one connection that wait in memory: several times what credits allow to the busiest client."""
PING_MS = 3_000
PING_TIMEOUT_MS = 12_000
"""A connection that answers no ping for so long is closed: its machine is gone, or a newer connection has its routing
id. ZeroMQ tells that one nothing and reads it no further; closed, it comes back and hears that it is fenced. Longer than
`broker.dead_s`: silence is judged there."""
HANDSHAKE_MS = 10_000
"""Whoever connects and does not introduce itself is cut off."""
NOBODY = Allowed(public="", roles=())
FORBIDDEN = encode_message(Refuse(reason="forbidden", detail="this key was revoked, or this routing id is another key's", fatal=True))


class Transport:
    """Binds `endpoint`; raises ConfigError where that cannot be had."""

    def __init__(self, endpoint: str, max_frame_bytes: int, keys: KeyDirectory | None = None) -> None:
        _raise_file_limit()
        _check_that_strangers_stay_out(endpoint, keys)
        _check_that_nobody_listens(endpoint)
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.setsockopt(zmq.SNDHWM, UNSENT_MESSAGES)
        self._router.setsockopt(zmq.RCVHWM, UNREAD_MESSAGES)
        self._router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._router.setsockopt(zmq.HEARTBEAT_IVL, PING_MS)
        self._router.setsockopt(zmq.HEARTBEAT_TIMEOUT, PING_TIMEOUT_MS)
        self._router.setsockopt(zmq.LINGER, LINGER_MS)
        self._router.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self._router.setsockopt(zmq.BACKLOG, 4096)
        self._router.setsockopt(zmq.IPV6, int("[" in endpoint))
        # Without the checks that pyzmq's own method makes for other kinds of sockets: half of what a frame costs.
        self._put = functools.partial(zmq.backend.Socket.send, self._router)
        self._doorkeeper: Doorkeeper | None = None
        self._taken_over: set[bytes] = set()
        self._choked: set[bytes] = set()
        try:
            self._doorkeeper = None if keys is None else Doorkeeper(self._context, self._router, keys)
            _bind_privately(self._router, endpoint)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        except zmq.ZMQError as error:
            if self._doorkeeper is not None:
                self._doorkeeper.close()
            self._context.destroy(linger=0)
            raise ConfigError(f"broker.endpoint {endpoint}: {error.strerror}; is another broker using it?") from error
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)

    def watch(self, descriptor: int) -> None:
        """`receive` also returns once `descriptor` is readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def receive(self, timeout_s: float) -> list[tuple[bytes, list[Frame]]]:
        """Waits up to `timeout_s`, then takes what is there, bounded: (routing id, frames) in order of arrival. Large frames are views of
        what the socket received, and leave again without a copy."""
        if self._router not in dict(self._poller.poll(max(0, int(timeout_s * 1000)))):
            return []
        taken: list[tuple[bytes, list[Frame]]] = []
        size = 0
        while len(taken) < DRAIN_MESSAGES and size < DRAIN_BYTES:
            try:
                identity, frames = self._receive_unchecked() if self._doorkeeper is None else self._receive_checked()
            except zmq.Again:
                break
            if identity:
                taken.append((identity, frames))
            size += sum(map(len, frames)) + 1
        return taken

    def _receive_unchecked(self) -> tuple[bytes, list[Frame]]:
        """One message, whoever sent it."""
        return self._router.recv(zmq.NOBLOCK), self._rest()

    def _rest(self) -> list[Frame]:
        """The frames behind a routing id: there is one at least."""
        receive, frames = self._router.recv, []
        while True:
            frame = receive(zmq.NOBLOCK, False)
            frames.append(frame.bytes if len(frame) < VIEW_BYTES else frame.buffer)
            if not frame.more:
                return frames

    def _receive_checked(self) -> tuple[bytes, list[Frame]]:
        """One message, whose key libzmq tells with the first frame; nobody's (an empty routing id) where that may not speak here."""
        assert self._doorkeeper is not None
        first = self._router.recv(zmq.NOBLOCK, copy=False)
        frames = self._rest() if first.more else []
        identity = first.bytes
        if self._doorkeeper.holder(identity, _public_key(first)) is not None:
            self._taken_over.discard(identity)
            return identity, frames
        self._taken_over.discard(identity)
        self.send(identity, [FORBIDDEN])
        self._taken_over.add(identity)  # what is meant for its owner waits until the owner is back
        return b"", frames

    def holder(self, identity: bytes) -> Allowed | None:
        """The key behind a routing id that has just spoken, one without roles if it was revoked; None where keys are not asked for."""
        return None if self._doorkeeper is None else self._doorkeeper.owner(identity) or NOBODY

    def revoked(self) -> list[str]:
        """Names of keys that were taken off the allow-list since the last call."""
        if self._doorkeeper is None:
            return []
        gone = self._doorkeeper.refresh()
        if gone:
            self._taken_over.clear()
        return gone

    def take_choked(self) -> list[bytes]:
        """Routing ids that left `UNSENT_MESSAGES` lying since the last call: messages to them were lost."""
        choked, self._choked = self._choked, set()
        return sorted(choked)

    def send(self, identity: bytes, frames: Sequence[Frame]) -> bool:
        """False where the peer is not there, or does not read."""
        if identity in self._taken_over:
            return False
        try:
            put, left = self._put, len(frames)
            put(identity, MORE)
            for frame in frames:
                left -= 1
                if len(frame) < VIEW_BYTES:
                    put(frame, MORE if left else zmq.NOBLOCK)
                else:
                    self._post(frame, MORE if left else zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EAGAIN:
                self._choked.add(identity)
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def _post(self, frame: Frame, flags: int) -> None:
        """One large frame: shared with the socket where it came from it, or is worth it."""
        owner: object = frame.obj if isinstance(frame, memoryview) else None
        if isinstance(owner, zmq.Frame) and len(owner) == len(frame):
            self._put(owner, flags)
        else:
            self._put(frame, flags, len(frame) < ZERO_COPY_BYTES)

    def close(self) -> None:
        """Sends what is left, within `LINGER_MS`."""
        self._router.close()
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        self._context.term()


def _public_key(frame: zmq.Frame) -> str | None:
    try:
        return str(frame.get("User-Id"))
    except (zmq.ZMQError, KeyError):
        return None


def _bind_privately(router: zmq.Socket[bytes], endpoint: str) -> None:
    """ipc: a socket file that nobody else may open, in whatever folder it is."""
    before = os.umask(0o077)
    try:
        router.bind(endpoint)
    finally:
        os.umask(before)


def _check_that_strangers_stay_out(endpoint: str, keys: KeyDirectory | None) -> None:
    """The last check before a socket is open to others; what is asked for is checked earlier, with better words."""
    if endpoint.startswith("ipc://@"):
        raise ConfigError(f"broker.endpoint {endpoint}: everybody on this machine may connect to an abstract socket; name a path")
    if not endpoint.startswith(("ipc://", "tcp://")):
        raise ConfigError(f"broker.endpoint {endpoint}: expected ipc://<path> or tcp://<address>:<port>")
    if keys is None and is_routable(endpoint):
        raise ConfigError(f"broker.endpoint {endpoint}: others can reach this address, and no keys are asked for; tidemill keys new NAME")


def _check_that_nobody_listens(endpoint: str) -> None:
    """ipc only: libzmq takes a socket file away from whoever listens on it, without a word. A dead broker's file refuses the connection."""
    if not endpoint.startswith("ipc://"):
        return
    path = endpoint.removeprefix("ipc://")
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigError(f"broker.endpoint {endpoint}: that is there already and is no socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise ConfigError(f"broker.endpoint {endpoint}: another process listens there; end it or choose another path")


def _raise_file_limit() -> None:
    """Every client is a descriptor, and a ROUTER without any left aborts the process (ipc)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
