"""What leaves once it is durable: counts said once a flush, deliveries together for whoever asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from broker.outbox import BUNDLE_BYTES, BUNDLE_MAX, Outbox
from broker.reports import Reports
from schemas.codec import Frame, decode_broker_message, each_delivery
from schemas.errors import WireError
from schemas.header import FrameInfo, Header
from schemas.messages import Abort, BrokerMessage, Committed, Deliver, Deliveries
from tests.broker.edge_doubles import ScriptedTransport

ENV, SYNC = b"env-0/i1", b"sync-0/i1"


class Tray:
    """An outbox, and what left it."""

    def __init__(self, run: Path) -> None:
        self.transport = ScriptedTransport([])
        self.reports = Reports(run)
        self.outbox = Outbox(self.transport, self.reports)  # type: ignore[arg-type]
        self.numbers = 0

    def post(self, to: bytes, message: BrokerMessage, *frames: Frame) -> None:
        self.numbers += 1
        self.outbox.post(self.numbers, to, message, frames)

    def left(self, to: bytes = ENV) -> list[tuple[BrokerMessage, Sequence[Frame]]]:
        """Everything is durable: what `to` is sent."""
        self.transport.sent.clear()
        self.outbox.release(self.numbers)
        return [(decode_broker_message(frames[0]), frames[1:]) for identity, frames in self.transport.sent if identity == to]


@pytest.fixture
def tray(tmp_path: Path) -> Iterator[Tray]:
    made = Tray(tmp_path)
    yield made
    made.reports.close()


def an_order(lease: int, size: int = 3) -> Deliver:
    return Deliver(lease=lease, header=Header(record="version", fingerprint=1, pipeline="p", queue="versions",
                                              frames=(FrameInfo("msgpack", (size,), size),)))  # fmt: skip


def test_what_is_not_durable_stays(tray: Tray) -> None:
    for lease in (1, 2):
        tray.post(ENV, Abort(lease=lease))
    tray.outbox.release(1)
    assert [decode_broker_message(frames[0]) for _, frames in tray.transport.sent] == [Abort(lease=1)]


def test_a_count_is_said_once_a_flush_and_behind_the_rest(tray: Tray) -> None:
    for number in (1, 2, 3):
        tray.post(ENV, Committed(seq=number))
        tray.post(SYNC, Committed(seq=10 + number))
        tray.post(ENV, Abort(lease=number))
    assert [message for message, _ in tray.left()] == [Abort(lease=1), Abort(lease=2), Abort(lease=3), Committed(seq=3)]


def test_deliveries_leave_together_for_whoever_asked_for_it_with_their_own_frames(tray: Tray) -> None:
    tray.outbox.asked(ENV, 16)
    for lease in (1, 2, 3):
        tray.post(ENV, an_order(lease), bytes([lease]) * 3)
        tray.post(SYNC, an_order(lease), b"one")
    ((message, frames),) = tray.left()
    assert isinstance(message, Deliveries)
    assert list(each_delivery(message, frames)) == [(an_order(lease), [bytes([lease]) * 3]) for lease in (1, 2, 3)]
    assert len([1 for to, _ in tray.transport.sent if to == SYNC]) == 3


def test_no_message_holds_more_deliveries_than_were_asked_for_or_than_the_bound(tray: Tray) -> None:
    tray.outbox.asked(ENV, 2)
    tray.outbox.asked(SYNC, 1000)
    for lease in range(40):
        tray.post(ENV, an_order(lease), b"abc")
        tray.post(SYNC, an_order(lease), b"abc")
    assert {len(message.orders) for message, _ in tray.left() if isinstance(message, Deliveries)} == {2}
    sizes = [len(frames) - 1 for to, frames in tray.transport.sent if to == SYNC]
    assert (max(sizes), sum(sizes)) == (BUNDLE_MAX, 40)


def test_large_records_do_not_wait_for_others(tray: Tray) -> None:
    tray.outbox.asked(ENV, 16)
    for lease in (1, 2):
        tray.post(ENV, an_order(lease, BUNDLE_BYTES), bytes(BUNDLE_BYTES))
    assert [type(message) for message, _ in tray.left()] == [Deliver, Deliver]


def test_other_messages_keep_their_place_among_deliveries(tray: Tray) -> None:
    tray.outbox.asked(ENV, 16)
    tray.post(ENV, an_order(1), b"abc")
    tray.post(ENV, an_order(2), b"abc")
    tray.post(ENV, Abort(lease=1))
    tray.post(ENV, an_order(3), b"abc")
    assert [type(message) for message, _ in tray.left()] == [Deliveries, Abort, Deliver]


def test_what_waits_for_a_client_that_says_hello_never_leaves(tray: Tray) -> None:
    tray.post(ENV, an_order(1), b"abc")
    tray.post(SYNC, an_order(2), b"abc")
    tray.outbox.asked(ENV, 1)
    assert tray.left() == []
    assert len(tray.transport.sent) == 1


def test_deliveries_that_describe_more_frames_than_came_are_refused() -> None:
    with pytest.raises(WireError, match="describe more"):
        list(each_delivery(Deliveries(orders=(an_order(1), an_order(2))), [b"abc"]))
