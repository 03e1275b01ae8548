"""What is measured: the load of one run, what each side of it reports, and the message that every system carries.

A message is `number | time of sending | last | filler`: the consumer sees with it that nothing is missing or out of order, how long it was
under way, and when the run is over. The same bytes go through every system.
"""

from __future__ import annotations

import struct
import time
from collections import deque

from msgspec import Struct

from schemas.errors import InvariantError

HEAD = struct.Struct("<QQB")
"""number from 0, CLOCK_MONOTONIC in ns (one clock for all processes of a machine), 1 on the last message."""
BYTES_MIN = HEAD.size


class Load(Struct, frozen=True, kw_only=True):
    """One producer process and one consumer process."""

    name: str
    bytes: int
    per_commit: int = 1
    """Messages that the producer hands over as one unit."""
    window: int = 512
    """Messages that the producer sends ahead of their acknowledgement, at most."""
    held: int = 512
    """Messages that the consumer holds unacknowledged, at most."""
    seconds: float = 2.0
    """The producer stops sending after this."""
    messages_max: int = 1 << 40
    """... or after this many."""


class Job(Struct, frozen=True, kw_only=True):
    """What a client process is told."""

    system: str
    side: str
    """`produce` or `consume`."""
    endpoint: str
    channel: str
    """Name of a queue or stream of its own for this run."""
    load: Load
    keys: str = ""
    """Directory of the keys that the server asks for; empty: it asks for none."""


class Side(Struct, frozen=True, kw_only=True):
    """What a client process found. Times are CLOCK_MONOTONIC seconds; latencies are milliseconds."""

    messages: int
    began: float
    """First message sent (producer) or taken (consumer)."""
    ended: float
    """Last acknowledgement: from the server to the producer, of the consumer to the server."""
    p50_ms: float
    """producer: from sending to acknowledgement; consumer: from sending to delivery."""
    p99_ms: float
    cpu_seconds: float = 0.0
    """Processor time of the process while the load ran."""


class Source:
    """The producer's side of a load: makes the messages, and knows how long each has waited for its acknowledgement."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._filler = bytes(load.bytes - HEAD.size)
        self._sent_at: deque[int] = deque()
        self._waited: list[int] = []
        self._deadline = 0
        self._began = 0
        self.sent = 0
        self.ended = False

    @property
    def in_flight(self) -> int:
        """Messages without an acknowledgement."""
        return len(self._sent_at)

    @property
    def room(self) -> int:
        """Messages that may be sent now; 0 once the last one was."""
        return 0 if self.ended else self._load.window - len(self._sent_at)

    def take(self) -> bytes:
        """The next message, counted as sent now."""
        now = time.monotonic_ns()
        if not self.sent:
            self._began, self._deadline = now, now + int(self._load.seconds * 1e9)
        self.ended = now >= self._deadline or self.sent + 1 >= self._load.messages_max
        message = HEAD.pack(self.sent, now, self.ended) + self._filler
        self._sent_at.append(now)
        self.sent += 1
        return message

    def acknowledged(self, count: int) -> None:
        """The oldest `count` messages are."""
        now = time.monotonic_ns()
        for _ in range(count):
            self._waited.append(now - self._sent_at.popleft())

    def report(self) -> Side:
        """After the last acknowledgement."""
        return _report(self.sent, self._began, self._waited)


class Sink:
    """The consumer's side of a load."""

    def __init__(self) -> None:
        self._under_way: list[int] = []
        self._began = 0
        self.taken = 0
        self.ended = False

    def take(self, message: bytes | memoryview) -> None:
        """Raises InvariantError where a message is missing, out of order or there twice."""
        now = time.monotonic_ns()
        number, sent, last = HEAD.unpack_from(message)
        if number != self.taken:
            raise InvariantError(f"message {self.taken} was next, {number} came")
        self._began = self._began or now
        self._under_way.append(now - sent)
        self.taken += 1
        self.ended = bool(last)

    def report(self) -> Side:
        """After the last acknowledgement was confirmed, or sent where the system confirms none."""
        return _report(self.taken, self._began, self._under_way)


def _report(messages: int, began: int, waits: list[int]) -> Side:
    p50, p99 = quantiles(waits)
    return Side(messages=messages, began=began / 1e9, ended=time.monotonic_ns() / 1e9, p50_ms=p50, p99_ms=p99)


def quantiles(waits: list[int]) -> tuple[float, float]:
    """Median and 99th percentile of nanoseconds, in milliseconds; 0 where there are none."""
    if not waits:
        return 0.0, 0.0
    ordered = sorted(waits)
    return ordered[len(ordered) // 2] / 1e6, ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] / 1e6
