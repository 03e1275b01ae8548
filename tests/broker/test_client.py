"""A client's side of the protocol, where it is more than the service loop shows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from broker.client import Client
from schemas.edges import Role
from schemas.errors import InvariantError
from schemas.messages import Bye, Committed, Credit, Deliver, Hello, Refuse, StepCommitted, Welcome
from tests.broker.edge_doubles import a_put
from tests.skeleton.scripted_broker import ScriptedBroker, a_scripted_broker
from tests.skeleton.waiting import until


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with a_scripted_broker() as made:
        yield made


@pytest.fixture
def client(broker: ScriptedBroker) -> Iterator[Client]:
    made = Client(broker.endpoint, Role.REWARD, "reward-0", lambda base: base)
    yield made
    made.close()


def hear(client: Client, broker: ScriptedBroker, kind: type) -> object:
    """What the client says next, while it polls."""
    found: list[object] = []

    def came() -> bool:
        client.poll(0.0)
        broker.listen(0.001)
        found.extend(message for message in broker.heard if isinstance(message, kind))
        broker.heard.clear()
        return bool(found)

    until(came, f"the client says {kind.__name__}")
    return found[0]


def welcomed(client: Client, broker: ScriptedBroker, epoch: int = 1, next_seq: int = 1) -> None:
    client.say_hello()
    hear(client, broker, Hello)
    broker.say(Welcome(epoch=epoch, next_seq=next_seq, config={}, run_directory=""))
    until(lambda: any(isinstance(message, Welcome) for message, _ in client.poll(0.01)), "the welcome arrives")


def test_what_is_delivered_between_two_welcomes_is_worked_on_by_nobody(client: Client, broker: ScriptedBroker) -> None:
    from schemas.records import Version

    hellos = []
    for _ in range(2):
        client.say_hello()
        hello = hear(client, broker, Hello)
        assert isinstance(hello, Hello)
        hellos.append(hello.number)
    assert hellos[0] < hellos[1]
    commit, frames = a_put(Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=()), "versions")
    answer = Welcome(epoch=1, next_seq=1, config={}, run_directory="")
    broker.say(replace(answer, hello=hellos[0]))
    broker.say(Deliver(lease=4, header=commit.puts[0]), frames)  # the second hello gives it back: it is not among what that one holds
    broker.say(replace(answer, hello=hellos[1]))
    broker.say(Deliver(lease=5, header=commit.puts[0]), frames)
    heard: list[Deliver] = []

    def arrived() -> bool:
        heard.extend(message for message, _ in client.poll(0.01) if isinstance(message, Deliver))
        return bool(heard)

    until(arrived, "a delivery arrives")
    assert [order.lease for order in heard] == [5]


def test_a_numbered_message_said_before_the_first_welcome_leaves_after_it_under_its_epoch(client: Client, broker: ScriptedBroker) -> None:
    client.send(Credit(queue="episodes", window=3))
    welcomed(client, broker, epoch=4)
    assert hear(client, broker, Credit) == Credit(epoch=4, seq=1, queue="episodes", window=3)


def test_numbers_begin_at_1_and_rise_by_1(client: Client, broker: ScriptedBroker) -> None:
    welcomed(client, broker)
    seqs = []
    for window in range(3):
        client.send(Credit(queue="episodes", window=window))
        credit = hear(client, broker, Credit)
        assert isinstance(credit, Credit)
        seqs.append(credit.seq)
    assert seqs == [1, 2, 3]
    assert client.unanswered == 3
    broker.say(Committed(seq=2))
    until(lambda: client.poll(0.01) == [] and client.unanswered == 1, "the answer arrives")


def test_bookkeeping_is_not_handed_on_and_records_come_with_their_frames(client: Client, broker: ScriptedBroker) -> None:
    from schemas.records import Version

    welcomed(client, broker)
    commit, frames = a_put(Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=()), "versions")
    broker.say(Committed(seq=0))
    broker.say(Deliver(lease=4, header=commit.puts[0]), frames)
    received: list = []
    until(lambda: received.extend(client.poll(0.01)) or received, "the delivery arrives")
    ((message, parts),) = received
    assert isinstance(message, Deliver)
    assert parts == [bytes(frame) for frame in frames]


def test_one_hello_leaves_for_each_connection_however_long_the_broker_was_away(client: Client, broker: ScriptedBroker) -> None:
    welcomed(client, broker)
    broker.close()
    until(lambda: client.poll(0.01) == [] and not client._connected, "the client notices")
    for _ in range(5):
        client.say_hello()
        client.poll(0.01)
    broker._open()
    hear(client, broker, Hello)
    for _ in range(20):
        client.poll(0.0)
        broker.listen(0.005)
    assert broker.heard == []


def test_a_client_is_of_no_use_in_a_forked_child(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InvariantError, match="forked child"):
        client.send(Bye())
    monkeypatch.undo()


def test_a_client_says_goodbye_where_someone_listens(broker: ScriptedBroker) -> None:
    client = Client(broker.endpoint, Role.REWARD, "reward-1", lambda base: base)
    welcomed(client, broker)
    client.close("run_end")
    assert broker.next(Bye).reason == "run_end"


def test_what_a_full_disk_refused_waits_and_is_put_again(client: Client, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.PUT_AGAIN_S", 0.0)
    welcomed(client, broker)
    client.send(Credit(queue="episodes", window=3))
    hear(client, broker, Credit)
    broker.say(Refuse(reason="disk_full", detail="no room", seq=1))
    until(lambda: client.poll(0.01) == [] and client.awaits_disk, "the refusal arrives")
    assert hear(client, broker, Credit) == Credit(epoch=1, seq=2, queue="episodes", window=3)
    assert not client.awaits_disk


def test_a_full_disk_ends_no_client_even_where_the_refused_message_is_not_known_any_more(client: Client, broker: ScriptedBroker) -> None:
    welcomed(client, broker)
    broker.say(Refuse(reason="disk_full", detail="no room", seq=7))
    broker.say(StepCommitted(step=1))
    received: list = []
    until(lambda: received.extend(client.poll(0.01)) or received, "the next order arrives")
    assert received[0][0] == StepCommitted(step=1)
