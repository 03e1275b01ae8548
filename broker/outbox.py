"""What waits for the disk: messages leave once the event that caused them is durable, in the order in which they were ordered.

Two things are said at once where they can be: `committed` counts up, so that the last one that leaves in a flush says all of it, behind the
rest; and deliveries to a client that asked for it in its hello leave several to a message.
"""

from __future__ import annotations

from collections import deque

import msgspec
from msgspec import Struct

from broker.core.actions import StepMetrics
from broker.reports import Reports
from broker.transport import Transport
from schemas.codec import Frame, encode_message
from schemas.messages import BrokerMessage, Committed, Deliver

BUNDLE_MAX = 16
BUNDLE_BYTES = 256 << 10
"""A message is closed from here on: what one client waits for then still leaves in small parts."""
ASKED_MAX = 20_000
"""Clients whose wish is remembered; forgotten, they are served one by one."""


class Waiting(Struct, frozen=True, gc=False):
    """What may leave once entry `number` is durable: frames to `identity`, or a step's metrics."""

    number: int
    identity: bytes = b""
    frames: tuple[Frame, ...] = ()
    metrics: StepMetrics | None = None
    committed: int = 0
    """Instead of frames: all numbered messages up to this one are taken."""
    delivers: bool = False
    """The first frame is a `Deliver`."""


class _Bundle(Struct, tag_field="type", tag="deliveries", gc=False):
    """`Deliveries`, of messages that are encoded already."""

    orders: list[msgspec.Raw]


class Outbox:
    """Of one broker."""

    def __init__(self, transport: Transport, reports: Reports) -> None:
        self._transport, self._reports = transport, reports
        self._waiting: deque[Waiting] = deque()
        self._asked: dict[bytes, int] = {}

    def asked(self, identity: bytes, deliveries: int) -> None:
        """A hello: so many deliveries may come in one message. What has not left yet for this client never will: the core answers a hello
        from the state, and counts as lost what was on its way. Sent after all, a delivery would be worked on and then come again."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.identity != identity)
        if deliveries > 1 and len(self._asked) < ASKED_MAX:
            self._asked[identity] = min(deliveries, BUNDLE_MAX)
        else:
            self._asked.pop(identity, None)

    def post(self, number: int, identity: bytes, message: BrokerMessage, attached: tuple[Frame, ...] = ()) -> None:
        """`message`, caused by entry `number`, and the frames that go with it."""
        if isinstance(message, Committed):
            self._waiting.append(Waiting(number, identity, committed=message.seq))
            return
        delivers = identity in self._asked and isinstance(message, Deliver)
        self._waiting.append(Waiting(number, identity, (encode_message(message), *attached), delivers=delivers))

    def report(self, number: int, metrics: StepMetrics) -> None:
        """Metrics of a step that entry `number` ended."""
        self._waiting.append(Waiting(number, metrics=metrics))

    def release(self, durable: int) -> None:
        """Lets out all that entries up to `durable` caused."""
        waiting = self._waiting
        committed: dict[bytes, int] = {}
        bundles: dict[bytes, list[Waiting]] = {}
        while waiting and waiting[0].number <= durable:
            first = waiting.popleft()
            if first.committed:
                committed[first.identity] = first.committed
            elif first.delivers:
                self._bundle(bundles, first)
            elif first.metrics is None:
                self._leave(bundles.pop(first.identity, None))
                self._transport.send(first.identity, first.frames)
            else:
                self._reports.step(first.metrics.step, first.metrics.metrics)
        for bundle in bundles.values():
            self._leave(bundle)
        for identity, seq in committed.items():
            self._transport.send(identity, [encode_message(Committed(seq=seq))])

    def _bundle(self, bundles: dict[bytes, list[Waiting]], order: Waiting) -> None:
        bundle = bundles.setdefault(order.identity, [])
        bundle.append(order)
        if len(bundle) >= self._asked.get(order.identity, 1) or len(bundle) * sum(map(len, order.frames)) >= BUNDLE_BYTES:
            self._leave(bundles.pop(order.identity))

    def _leave(self, bundle: list[Waiting] | None) -> None:
        if not bundle:
            return
        if len(bundle) == 1:
            self._transport.send(bundle[0].identity, bundle[0].frames)
            return
        head = encode_bundle(_Bundle([msgspec.Raw(order.frames[0]) for order in bundle]))
        self._transport.send(bundle[0].identity, [head, *(frame for order in bundle for frame in order.frames[1:])])


encode_bundle = msgspec.msgpack.Encoder().encode
