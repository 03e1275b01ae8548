"""The door: who comes in, as what, for how long. Real sockets."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from broker.client import Client
from broker.keys import ClientKeys, KeyDirectory, KeyPair, read_pair
from broker.transport import Transport
from schemas.codec import encode_message, encode_record, make_header
from schemas.edges import EDGES, Role
from schemas.errors import BrokerRefusedError, ConfigError
from schemas.messages import (
    Commit,
    Committed,
    Credit,
    DeadAsked,
    DeadRetry,
    Deliver,
    Heartbeat,
    Refuse,
    Status,
    StatusAsked,
    StopAsked,
    Welcome,
)
from schemas.records import Version
from tests.broker.security.gate import Gate, Street, a_gate, an_open_gate
from tests.skeleton.waiting import until

EVERY_ROLE = tuple(Role)
SECONDS = 2.0
"""Within which a client has to be told that it is not let in."""


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with a_gate(tmp_path, all=EVERY_ROLE, env=(Role.ENV,), env2=(Role.ENV,), reward=(Role.REWARD,), rollout=(Role.ROLLOUT,),
                eye=(Role.OBSERVER,)) as made:  # fmt: skip
        yield made


def a_stranger(server: str) -> ClientKeys:
    public, secret = zmq.curve_keypair()
    return ClientKeys(KeyPair(public.decode(), secret.decode()), server)


def refused(endpoint: str, keys: ClientKeys | None) -> tuple[str, float]:
    """What our client raises, and after how many seconds."""
    client = Client(endpoint, Role.ENV, "env-0", lambda base: base, keys)
    began = time.monotonic()
    try:
        client.say_hello()
        while time.monotonic() - began < 20:
            client.poll(0.1)
        pytest.fail("nobody told the client that it is not let in")
    except BrokerRefusedError as error:
        return str(error), time.monotonic() - began
    finally:
        client.close()


def test_who_has_a_key_on_the_list_comes_in(gate: Gate, street: Street) -> None:
    assert isinstance(street.knock(gate.endpoint, "env-0/i1", gate.client("env")).hello(Role.ENV, "env-0"), Welcome)


@pytest.mark.parametrize("who", ["a key that is not on the list", "the wrong server key", "no key"])
def test_a_wrong_or_missing_key_is_a_clear_error_within_two_seconds(gate: Gate, who: str) -> None:
    server = gate.client("env").server
    right = gate.client("env").pair
    keys, words = {
        "a key that is not on the list": (a_stranger(server), "does not know this key"),
        "the wrong server key": (ClientKeys(right, right.public), "has not the server key"),
        "no key": (None, "asks for a key"),
    }[who]
    text, seconds = refused(gate.endpoint, keys)
    assert words in text
    assert "server.pub" in text or "tidemill keys new" in text
    assert seconds < SECONDS  # the promise itself


def test_a_key_at_a_broker_that_asks_for_none_is_a_clear_error_too(tmp_path: Path) -> None:
    with an_open_gate(tmp_path) as gate:
        text, seconds = refused(gate.endpoint, a_stranger(zmq.curve_keypair()[0].decode()))
        assert "asks for none" in text
        assert seconds < SECONDS


def test_a_broker_that_is_not_there_is_waited_for() -> None:
    client = Client("tcp://127.0.0.1:9", Role.ENV, "env-0", lambda base: base, a_stranger("x" * 40))
    try:
        client.say_hello()
        for _ in range(5):
            assert client.poll(0.1) == []
    finally:
        client.close()


def test_a_key_is_a_client_of_its_roles_alone(gate: Gate, street: Street) -> None:
    for role in Role:
        answer = street.knock(gate.endpoint, f"{role}-x/i1", gate.client("env")).hello(role, f"{role}-x", ready=False)
        assert isinstance(answer, Welcome) if role is Role.ENV else isinstance(answer, Refuse)
        if isinstance(answer, Refuse):
            assert (answer.reason, answer.fatal) == ("forbidden", True)


def test_only_observers_and_hosts_look_at_the_run_and_end_it(gate: Gate, street: Street) -> None:
    env = street.knock(gate.endpoint, "peeping/i1", gate.client("env"))
    for message in (StatusAsked(), DeadAsked(), DeadRetry(id=1), StopAsked(reason="mine")):
        env.say(message)
        assert env.hear() == Refuse(
            reason="forbidden", detail=f"this key is for env; {type(message).__name__} takes one for observer or host", fatal=True
        )
    eye = street.knock(gate.endpoint, "eye/i1", gate.client("eye"))
    assert eye.ask_status().body["phase"] == "starting"
    eye.say(StopAsked(reason="enough"))
    until(lambda: not gate.thread.is_alive(), "the run ends")


@pytest.mark.parametrize("queue", sorted(EDGES))
def test_no_role_may_lease_what_it_does_not_consume(gate: Gate, street: Street, queue: str) -> None:
    for role in (Role.REWARD, Role.ROLLOUT):
        knocker = street.knock(gate.endpoint, f"{role}-0/i1", gate.client(role.value))
        answer = knocker.hello(role, f"{role}-0", windows={queue: 1})
        if role in EDGES[queue].consumers:
            assert isinstance(answer, Welcome)
            continue
        assert isinstance(answer, Refuse)
        assert answer.reason == "role"
        assert isinstance(knocker.hello(role, f"{role}-0"), Welcome)
        knocker.say(Credit(epoch=1, seq=1, queue=queue, window=1))
        assert knocker.hear_a(Refuse).reason == "role"


def test_reward_cannot_put_versions(gate: Gate, street: Street) -> None:
    reward = street.knock(gate.endpoint, "reward-0/i1", gate.client("reward"))
    reward.hello(Role.REWARD, "reward-0")
    record = Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=())
    frames = encode_record(record)
    header = make_header(record, frames, pipeline="skeleton", queue="versions", newest_version=0, weights="0a")
    reward.say(Commit(epoch=1, seq=1))
    reward.hear_a(Committed)
    reward.socket.send_multipart([encode_message(Commit(epoch=1, seq=2, puts=(header,))), *frames])
    answer = reward.hear_a(Refuse)
    assert (answer.reason, answer.seq) == ("role", 2)


def test_a_name_at_work_stays_with_the_key_it_came_in_by(gate: Gate, street: Street) -> None:
    first = street.knock(gate.endpoint, "env-0/i1", gate.client("env"))
    assert isinstance(first.hello(Role.ENV, "env-0"), Welcome)
    answer = street.knock(gate.endpoint, "env-0/i2", gate.client("env2")).hello(Role.ENV, "env-0", incarnation="i2")
    assert isinstance(answer, Refuse)
    assert answer.reason == "forbidden"
    assert isinstance(first.hello(Role.ENV, "env-0"), Welcome)


def test_what_is_meant_for_the_owner_of_a_routing_id_never_reaches_who_took_it_over(tmp_path: Path, street: Street) -> None:
    directory = KeyDirectory(tmp_path)
    directory.new("owner", EVERY_ROLE)
    directory.new("thief", EVERY_ROLE)
    transport = Transport("tcp://127.0.0.1:*", 1000, directory)
    try:
        keys = {name: ClientKeys(read_pair(directory.client_file(name)), directory.server().public) for name in ("owner", "thief")}
        owner = street.knock(transport.endpoint, "env-0/i1", keys["owner"])
        heard: list[tuple[bytes, list[bytes]]] = []
        owner.socket.send(b"mine")
        until(lambda: heard.extend(transport.receive(0.01)) or heard, "the owner is heard")
        owner.socket.disconnect(transport.endpoint)
        thief = street.knock(transport.endpoint, "env-0/i1", keys["thief"])
        thief.socket.send(b"mine")
        until(lambda: heard.extend(transport.receive(0.01)) or thief.socket.poll(0), "the thief is answered")
        assert heard == [(b"env-0/i1", [b"mine"])]
        assert transport.send(b"env-0/i1", [b"secret"]) is False
        assert isinstance(thief.hear(), Refuse)
        assert not thief.socket.poll(100)
        owner.socket.connect(transport.endpoint)
        owner.socket.send(b"back")
        until(lambda: heard.extend(transport.receive(0.01)) or len(heard) > 1, "the owner is back")
        assert transport.send(b"env-0/i1", [b"secret"]) is True
        assert owner.socket.recv() == b"secret"
    finally:
        transport.close()


def test_a_routing_id_of_another_key_speaks_for_nobody(gate: Gate, street: Street) -> None:
    owner = street.knock(gate.endpoint, "env-0/i1", gate.client("env"))
    assert isinstance(owner.hello(Role.ENV, "env-0", windows={"tickets": 1}), Welcome)
    owner.socket.disconnect(gate.endpoint)
    thief = street.knock(gate.endpoint, "env-0/i1", gate.client("env2"))
    for message in (Heartbeat(), StatusAsked(), Commit(epoch=1, seq=1)):
        thief.say(message)
        answer = thief.hear()
        assert isinstance(answer, Refuse)
        assert answer.reason == "forbidden"
    owner.socket.connect(gate.endpoint)
    assert isinstance(owner.hello(Role.ENV, "env-0"), Welcome)


def test_a_revoked_key_is_refused_at_once_and_its_sessions_end_within_seconds(gate: Gate, street: Street) -> None:
    env = street.knock(gate.endpoint, "env-0/i1", gate.client("env"))
    other = street.knock(gate.endpoint, "env-1/i1", gate.client("env2"))
    assert isinstance(env.hello(Role.ENV, "env-0"), Welcome)
    assert isinstance(other.hello(Role.ENV, "env-1"), Welcome)
    keys = gate.client("env")
    assert gate.keys is not None
    gate.keys.revoke("env")
    told = env.hear(5.0)  # without having said anything
    assert told == Refuse(reason="forbidden", detail="the key 'env' was revoked", fatal=True)
    until(lambda: not gate.driver.state.clients["env-0"].connected, "its leases are given to others")
    env.say(Heartbeat())
    assert env.hear_a(Refuse).reason == "forbidden"
    text, seconds = refused(gate.endpoint, keys)
    assert "revoked" in text
    assert seconds < SECONDS
    assert isinstance(other.hello(Role.ENV, "env-1"), Welcome)
    assert gate.driver.state.clients["env-1"].connected


def test_a_key_made_while_the_broker_runs_comes_in_within_seconds(gate: Gate, street: Street) -> None:
    assert gate.keys is not None
    gate.keys.new("late", (Role.REWARD,))

    def comes_in() -> bool:
        knocker = street.knock(gate.endpoint, f"reward-9/{time.monotonic_ns()}", gate.client("late"))
        knocker.say(StatusAsked())
        return bool(knocker.socket.poll(300))

    until(comes_in, "the new key is let in", patience_s=10.0)


def test_without_its_handler_the_door_is_shut(gate: Gate) -> None:
    doorkeeper = gate.transport._doorkeeper  # as after a crash of that thread, which nothing else can cause
    assert doorkeeper is not None
    doorkeeper.close()
    refused(gate.endpoint, gate.client("all"))


@pytest.mark.parametrize("address", ["*", "0.0.0.0"])
def test_a_socket_that_others_can_reach_is_never_bound_without_keys(address: str) -> None:
    with pytest.raises(ConfigError, match="tidemill keys new"):
        Transport(f"tcp://{address}:*", 1000)


@pytest.mark.parametrize("endpoint", ["ipc://@tidemill", "inproc://x", "ws://127.0.0.1:1"])
def test_a_socket_of_another_kind_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        Transport(endpoint, 1000)


def test_an_ipc_socket_is_this_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        transport = Transport(f"ipc://{tmp_path}/s", 1000)
    finally:
        assert os.umask(before) == 0
    try:
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) & 0o077 == 0
    finally:
        transport.close()


def test_deliveries_reach_the_owner_after_all_that(gate: Gate, street: Street) -> None:
    eye = street.knock(gate.endpoint, "eye/i1", gate.client("eye"))
    assert isinstance(eye.ask_status(), Status)
    trainer = street.knock(gate.endpoint, "actor-train-0/i1", gate.client("all"))
    assert isinstance(trainer.hello(Role.ACTOR_TRAIN, "actor-train-0", resume_step=0), Welcome)
    record = Version(lineage=0, number=0, digest="0a", location="nowhere", tensors=())
    frames = encode_record(record)
    header = make_header(record, frames, pipeline="skeleton", queue="versions", newest_version=0, weights="0a")
    trainer.socket.send_multipart([encode_message(Commit(epoch=1, seq=1, puts=(header,))), *frames])
    sync = street.knock(gate.endpoint, "weight-sync-0/i1", gate.client("all"))
    sync.hello(Role.WEIGHT_SYNC, "weight-sync-0", windows={"versions": 1})
    assert sync.hear_a(Deliver).header.queue == "versions"
