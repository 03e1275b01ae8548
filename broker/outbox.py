"""What waits for the disk: messages leave once the event that caused them is durable, in the order in which they were ordered.

Two things are said at once where they can be: `committed` counts up, so that the last one that leaves in a flush says all of it, behind the
rest; and deliveries to a client that asked for it in its hello leave several to a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from broker.core.actions import StepMetrics
from broker.reports import Reports
from broker.transport import Transport
from schemas.codec import Frame, encode_message
from schemas.messages import BrokerMessage, Committed, Deliver, Deliveries

BUNDLE_MAX = 16
BUNDLE_BYTES = 256 << 10
"""A message is closed from here on: what one client waits for then still leaves in small parts."""
ASKED_MAX = 20_000
"""Clients whose wish is remembered; forgotten, they are served one by one."""


class Waiting(Struct, frozen=True, gc=False):
    """What may leave once entry `number` is durable: a message to `identity` with its frames, or a step's metrics. Encoded when it leaves:
    a bundle costs little more than one of its deliveries."""

    number: int
    identity: bytes = b""
    message: BrokerMessage | None = None
    attached: Sequence[Frame] = ()
    metrics: StepMetrics | None = None
    committed: int = 0
    """Instead of a message: all numbered messages up to this one are taken."""
    bundle: int = 0
    """It is a delivery, and so many of them may leave in one message."""


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

    def post(self, number: int, identity: bytes, message: BrokerMessage, attached: Sequence[Frame] = ()) -> None:
        """`message`, caused by entry `number`, and the frames that go with it."""
        if isinstance(message, Committed):
            self._waiting.append(Waiting(number, identity, None, (), None, message.seq))
        else:
            bundle = self._asked.get(identity, 0) if isinstance(message, Deliver) else 0
            self._waiting.append(Waiting(number, identity, message, attached, None, 0, bundle))

    def report(self, number: int, metrics: StepMetrics) -> None:
        """Metrics of a step that entry `number` ended."""
        self._waiting.append(Waiting(number, metrics=metrics))

    def release(self, durable: int) -> None:
        """Lets out all that entries up to `durable` caused."""
        waiting = self._waiting
        committed: dict[bytes, int] = {}
        bundles: dict[bytes, _Bundle] = {}
        while waiting and waiting[0].number <= durable:
            first = waiting.popleft()
            identity = first.identity
            if first.bundle:
                bundle = bundles.get(identity)
                if bundle is None:
                    bundle = bundles[identity] = _Bundle()
                if bundle.is_full_with(first):
                    self._leave(identity, bundles.pop(identity))
            elif first.committed:
                committed[identity] = first.committed
            elif first.message is not None:
                if identity in bundles:
                    self._leave(identity, bundles.pop(identity))
                self._transport.send(identity, [encode_message(first.message), *first.attached])
            elif first.metrics is not None:
                self._reports.step(first.metrics.step, first.metrics.metrics)
        for identity, bundle in bundles.items():
            self._leave(identity, bundle)
        for identity, seq in committed.items():
            self._transport.send(identity, [encode_message(Committed(seq=seq))])

    def _leave(self, identity: bytes, bundle: _Bundle) -> None:
        orders = bundle.orders
        bundle.frames[0] = encode_message(orders[0] if len(orders) == 1 else Deliveries(orders=tuple(orders)))
        self._transport.send(identity, bundle.frames)


class _Bundle:
    """Deliveries of one message in the making."""

    __slots__ = ("bytes", "frames", "orders")

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.frames: list[Frame] = [b""]
        """The first is the message's own, made last."""
        self.bytes = 0

    def is_full_with(self, order: Waiting) -> bool:
        """Adds a delivery; True where the message is to leave with it."""
        attached = order.attached
        self.orders.append(order.message)
        self.frames += attached
        self.bytes += sum(map(len, attached)) if len(attached) > 1 else len(attached[0])
        return len(self.orders) >= order.bundle or self.bytes >= BUNDLE_BYTES
