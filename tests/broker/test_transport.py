"""The one socket, and the line to it: bounded, never blocked by who is gone, and of no weight when it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from broker.core.events import Received
from broker.transport import Transport
from schemas.errors import ConfigError
from schemas.messages import Commit, Hello
from tests.broker.folding import events_of
from tests.broker.test_restarts import check_that_every_ticket_ended_once
from tests.skeleton.broker_process import a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.cutting_proxy import a_cutting_proxy
from tests.skeleton.waiting import until

MAX_FRAME_BYTES = 1000


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport("tcp://127.0.0.1:*", MAX_FRAME_BYTES)
    yield made
    made.close()


@pytest.fixture
def dealer(transport: Transport) -> Iterator[zmq.Socket]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.ROUTING_ID, b"env-0/i1")
        socket.linger = 0
        socket.connect(transport.endpoint)
        yield socket


def received(transport: Transport) -> list[tuple[bytes, list[bytes]]]:
    found: list[tuple[bytes, list[bytes]]] = []
    until(lambda: found.extend(transport.receive(0.05)) or found, "something arrives")
    return found


def test_what_arrives_carries_its_senders_routing_id_and_all_frames(transport: Transport, dealer: zmq.Socket) -> None:
    dealer.send_multipart([b"one", b"", b"three"])
    assert received(transport) == [(b"env-0/i1", [b"one", b"", b"three"])]


def test_who_is_gone_is_an_answer_and_no_error(transport: Transport, dealer: zmq.Socket) -> None:
    assert not transport.send(b"nobody", [b"x"])
    dealer.send(b"here")
    received(transport)
    assert transport.send(b"env-0/i1", [b"x"])
    assert dealer.recv_multipart() == [b"x"]


def test_a_frame_above_the_limit_closes_its_connection_and_nothing_else(transport: Transport, dealer: zmq.Socket) -> None:
    dealer.send(b"x" * (MAX_FRAME_BYTES + 1))
    with zmq.Context() as context, context.socket(zmq.DEALER) as other:
        other.linger = 0
        other.connect(transport.endpoint)
        other.send(b"x" * MAX_FRAME_BYTES)
        ((_, frames),) = received(transport)
    assert frames == [b"x" * MAX_FRAME_BYTES]
    dealer.send(b"small again")  # libzmq reconnects by itself
    assert received(transport) == [(b"env-0/i1", [b"small again"])]


@pytest.mark.parametrize("endpoint", ["tcp://256.0.0.1:5", "ipc:///no/such/folder/broker", "smoke://signals"])
def test_an_endpoint_that_cannot_be_had_is_a_matter_of_config(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=endpoint):
        Transport(endpoint, MAX_FRAME_BYTES)


@pytest.mark.parametrize("cuts", [(10, 60), (20, 40, 70, 100, 130)])
def test_a_run_survives_cuts_of_every_line_while_its_broker_lives_on(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "schedule.steps=6", "evaluation.problems=6")
    with (
        a_broker_process(run, config, "tcp://127.0.0.1:*") as broker,
        a_cutting_proxy((run / "endpoint").read_text()) as proxy,
        a_crew(proxy.endpoint) as crew,
    ):
        for answers in cuts:
            crew.wait_for_answers(answers)
            proxy.cut()
        crew.wait_until_home()
        assert broker.wait() == 0
        assert proxy.cuts > 0
    check_that_every_ticket_ended_once(run)
    messages = [event.message for event in events_of(run) if isinstance(event, Received)]
    hellos = [message for message in messages if isinstance(message, Hello) and message.ready]
    assert len(hellos) > 6, "each cut is followed by a hello"
    assert any(isinstance(message, Commit) for message in messages)
