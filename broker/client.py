"""A client's side of the protocol: what a stage needs to speak with the broker, and nothing of what stages do.

Promises: numbered messages arrive exactly once and in order, whatever is restarted in between (kept until the broker has answered for them,
sent again from where it asks); after a cut the client says hello again with the leases it holds, those of commits without an answer among
them. Never blocks but in `poll`. One thread, and not across a fork.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog
import zmq
from msgspec.structs import replace
from zmq.utils.monitor import recv_monitor_message

from broker.handshake import FAILURES, Handshakes, arm
from broker.keys import ClientKeys
from broker.parts import receive_parts, send_parts
from schemas.codec import Frame, each_delivery, encode_message
from schemas.edges import Role
from schemas.errors import BrokerRefusedError, FencedError, InvariantError, WireError
from schemas.lock import schema_fingerprint
from schemas.messages import (
    PROTOCOL_VERSION,
    BrokerMessage,
    Bye,
    ClientMessage,
    Commit,
    Committed,
    Deliver,
    Deliveries,
    Heartbeat,
    Hello,
    Numbered,
    Refuse,
    ResendFrom,
    Welcome,
)  # fmt: skip

HELLO_RETRY_S = 30.0
"""A hello that got no answer on a living connection is said again. Long: a broker that folds a long journal answers late, and each hello
that waits behind another gives back what the first one was delivered."""
RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
"""Back-off of the socket's own reconnects, each of which is followed by a hello."""
SILENT_LINE_MS = 6_000
"""What was sent and no machine acknowledged for so long ends a tcp connection, and a new one is tried. The kernel by itself doubles
its pauses: after a partition of half a minute a client came back 95 s late. A broker that stands still is another matter: its machine
answers."""
CONNECT_MS = 3_000
"""One attempt to connect, for the same reason."""
LINGER_MS = 500
DELIVERIES = 16
"""Deliveries that may come in one message: small records cost a quarter less that way."""
ORDINARY_REFUSALS = frozenset({"stale_lease", "late", "no_ticket", "disk_full"})
"""The broker took the work away while it was being done, or has no room just now: nothing is wrong here."""

PUT_AGAIN_S = 1.0
"""A broker whose disk is full takes nothing that belongs to no ticket; it is asked again after so long."""

log = structlog.get_logger()
Received = tuple[BrokerMessage, list[Frame]]


class Client:
    """One process's connection. `hello` makes the message to introduce it with, now and after each cut."""

    def __init__(self, endpoint: str, role: Role, name: str, hello: Callable[[Hello], Hello], keys: ClientKeys | None = None) -> None:
        self.role, self.name = role, name
        self._incarnation = secrets.token_hex(8)
        self._hello = hello
        self._process = os.getpid()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, f"{name}/{self._incarnation}".encode())
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self._socket.setsockopt(zmq.TCP_MAXRT, SILENT_LINE_MS)
        self._socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        with_keys = arm(self._socket, endpoint, keys)
        self._public = keys.pair.public if keys is not None and with_keys else ""
        self._handshakes = Handshakes(endpoint, with_keys=with_keys)
        self._line: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | FAILURES)
        self._socket.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._line, zmq.POLLIN)
        self._connected = False
        self._outbox: OrderedDict[int, tuple[ClientMessage, Sequence[Frame]]] = OrderedDict()
        self._kept_back: list[tuple[float, ClientMessage, Sequence[Frame]]] = []
        """What a full disk refused, and when to put it again."""
        self._frame_bytes_max: int | None = None
        """Known from the first welcome on."""
        self._next_seq = 1
        self._epoch = 0
        self._welcomed = False
        self._hellos = 0
        """Said so far: a welcome that answers an earlier one than the last is not waited for any more."""
        self._hello_at: float | None = None
        """When to say hello (again); None while it is not needed."""

    # --- outward ------------------------------------------------------------------------------------------------------------

    def watch(self, descriptor: int) -> None:
        """`poll` also returns once `descriptor` is readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def say_hello(self) -> None:
        """Introduces the client (again), now or as soon as someone listens; until the welcome only numbered messages are taken, and kept.

        Nothing is ever queued on a dead connection: a second hello behind the first would give back what the first one was delivered.
        """
        self._welcomed = False
        self._hello_at = time.monotonic() + HELLO_RETRY_S
        if self._connected:
            self._hellos += 1
            self._post([encode_message(self._hello(self._introduction()))])

    def _introduction(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION, schema=schema_fingerprint(), role=self.role, name=self.name, incarnation=self._incarnation,
            pipeline="", next_seq=next(iter(self._outbox), self._next_seq), holds=self._unanswered_leases(), pid=os.getpid(),
            deliveries=DELIVERIES, public=self._public, number=self._hellos,
        )  # fmt: skip

    def _unanswered_leases(self) -> tuple[int, ...]:
        """Leases that commits on their way answer for: not named at hello, they would be given to others and the commits refused."""
        kept = [*(message for message, _ in self._outbox.values()), *(message for _, message, _ in self._kept_back)]
        commits = [message for message in kept if isinstance(message, Commit)]
        return tuple(lease for commit in commits for lease in (*commit.acks, *(failure.lease for failure in commit.fails)))

    def send(self, message: ClientMessage, frames: Sequence[Frame] = ()) -> None:
        """Numbered messages are kept until answered for; others are sent once.

        Raises WireError for a frame that the broker would close the connection for, again and again.
        """
        largest = max(map(len, frames), default=0)
        if self._frame_bytes_max is not None and largest > self._frame_bytes_max:
            raise WireError(f"{self.name}: a frame of {largest} bytes; broker.max_frame_bytes lets {self._frame_bytes_max} through")
        if not isinstance(message, Numbered):
            self._post([encode_message(message), *frames])
            return
        self._outbox[self._next_seq] = message, frames
        self._next_seq += 1
        if self._welcomed:
            self._post_numbered(self._next_seq - 1)

    def _post_numbered(self, seq: int) -> None:
        message, frames = self._outbox[seq]
        self._post([encode_message(replace(message, epoch=self._epoch, seq=seq)), *frames])

    def heartbeat(self, stats: dict[str, float], waiting: str) -> None:
        """Renews all leases."""
        if self._welcomed:
            self._post([encode_message(Heartbeat(stats=stats, waiting=waiting))])

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvariantError(f"{self.name}: the connection was made by process {self._process}; a forked child needs its own")

    def _post(self, parts: Sequence[Frame]) -> None:
        self._check_process()
        send_parts(self._socket, parts)

    @property
    def unanswered(self) -> int:
        """Numbered messages that the broker has not answered for."""
        return len(self._outbox) + len(self._kept_back)

    @property
    def at_home(self) -> bool:
        """True while the broker and this client are in touch: the line is up, and the last hello on it was answered."""
        return self._connected and self._welcomed

    @property
    def awaits_disk(self) -> bool:
        """True while something waits for room on the broker's disk, to be put again."""
        return bool(self._kept_back)

    # --- inward -------------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Received]:
        """Waits up to `timeout_s` for a message (or a watched descriptor); returns the broker's orders, its own bookkeeping done.

        Raises BrokerRefusedError where the broker will not have this client.
        """
        self._check_process()
        if self._connected and self._hello_at is not None and time.monotonic() > self._hello_at:
            self.say_hello()
        self._put_again()
        self._poller.poll(max(0, int(timeout_s * 1000)))
        self._watch_the_line()
        orders: list[Received] = []
        while True:
            try:
                message, frames = receive_parts(self._socket)
            except zmq.Again:
                return orders
            except WireError as error:
                log.error("bad_message_from_broker", detail=str(error))
                continue
            if self._bookkeeping(message) or (isinstance(message, Deliver) and not self._welcomed):
                continue  # a delivery that crossed the hello is not among what it holds: the broker gives it to somebody anew
            if isinstance(message, Deliveries):
                orders += each_delivery(message, frames) if self._welcomed else ()
                continue
            orders.append((message, frames))

    def _watch_the_line(self) -> None:
        """A cut may have swallowed messages of either side: the hello that follows finds out which."""
        while self._line.poll(0):
            event = recv_monitor_message(self._line)["event"]
            refusal = self._handshakes.judge(event)
            if refusal is not None:
                raise BrokerRefusedError(f"{self.name}: {refusal}")
            self._connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self._welcomed or (self._connected and self._hello_at is not None):
                self.say_hello()

    def _bookkeeping(self, message: BrokerMessage) -> bool:
        """True where the message was for this class alone."""
        if isinstance(message, Committed):
            self._answered(message.seq)
        elif isinstance(message, ResendFrom):
            self._resend(message.seq)
        elif isinstance(message, Refuse):
            self._refused(message)
        elif isinstance(message, Welcome):
            if message.hello not in (0, self._hellos):
                return True  # what is delivered between this and the next welcome was given back by the later hello
            self._on_welcome(message)
            return False
        else:
            return False
        return True

    def _answered(self, seq: int) -> None:
        while self._outbox and next(iter(self._outbox)) <= seq:
            self._outbox.popitem(last=False)

    def _resend(self, seq: int) -> None:
        for number in self._outbox:
            if number >= seq:
                self._post_numbered(number)

    def _refused(self, refusal: Refuse) -> None:
        if refusal.reason == "hello_first":
            if self._welcomed or self._hello_at is None:
                self.say_hello()
            return
        refused = self._outbox.pop(refusal.seq, None) if refusal.seq is not None else None
        if refused is not None and refusal.reason == "disk_full":
            self._kept_back.append((time.monotonic() + PUT_AGAIN_S, *refused))
            return
        if refusal.fatal or refusal.reason not in ORDINARY_REFUSALS:
            kind = FencedError if refusal.reason == "fenced" else BrokerRefusedError
            raise kind(f"{self.name}: the broker refused ({refusal.reason}): {refusal.detail}")
        log.info("refused", reason=refusal.reason, detail=refusal.detail, seq=refusal.seq)

    def _put_again(self) -> None:
        """Under new numbers: the refusals have spent the old ones."""
        due = [kept for kept in self._kept_back if kept[0] <= time.monotonic()]
        self._kept_back = self._kept_back[len(due) :]
        for _, message, frames in due:
            self.send(message, frames)

    def _on_welcome(self, welcome: Welcome) -> None:
        first = self._epoch != welcome.epoch
        self._epoch, self._welcomed, self._hello_at = welcome.epoch, True, None
        broker = welcome.config.get("broker")
        self._frame_bytes_max = broker.get("max_frame_bytes") if isinstance(broker, dict) else None
        self._answered(welcome.next_seq - 1)
        if first:
            self._renumber(welcome.next_seq)
        self._resend(welcome.next_seq)

    def _renumber(self, next_seq: int) -> None:
        """Numbers start where the broker expects them; what was queued before the first welcome starts at 1, as a new incarnation does."""
        if self._outbox and next(iter(self._outbox)) != next_seq:
            raise InvariantError(f"{self.name}: the broker expects {next_seq}, the oldest kept is {next(iter(self._outbox))}")
        self._next_seq = max(self._next_seq, next_seq)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Says goodbye where someone listens, and leaves within the linger time."""
        if os.getpid() != self._process:
            return  # the sockets are the parent's: a child that closes them waits for threads it does not have
        if self._welcomed:
            self._post([encode_message(Bye(reason=reason))])
        self._socket.disable_monitor()
        self._line.close()
        self._socket.close()
        self._context.term()
