"""Whatever anyone sends: the loop goes on, the others are served, memory stays within what broker/README.md states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgpack
import msgspec
import psutil
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from broker.client import Client
from broker.core.invariants import violations
from schemas.codec import FRAMES_MAX, MESSAGE_BYTES_MAX, encode_message
from schemas.edges import EDGES, Role
from schemas.errors import WireError
from schemas.messages import Commit, Heartbeat, Refuse, StatusAsked, Welcome
from tests.broker.edge_doubles import a_hello
from tests.broker.security.gate import MAX_FRAME_BYTES, Gate, Knocker, Street, an_open_gate
from tests.broker.security.specimens import CLIENT_MESSAGES
from tests.skeleton.waiting import until

MIB = 1 << 20
SEED = int(os.environ.get("TIDEMILL_FUZZ_SEED", "20"))
"""Printed by pytest with a failure through hypothesis; another one by the environment."""
STATED_BYTES = 160 * MIB
"""Room for 1,000 unread messages of the 16 KiB that are sent here, 16,384 unsent refusals, a turn's 8 MiB, and what allocators keep."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with an_open_gate(tmp_path_factory.mktemp("flood")) as made:
        yield made


@pytest.fixture(scope="module")
def witness(gate: Gate) -> Iterator[Knocker]:
    """An honest client: as long as it is answered, the loop goes on."""
    street = Street()
    yield street.knock(gate.endpoint, "witness/i1")
    street.close()


@pytest.fixture(scope="module")
def stranger(gate: Gate) -> Iterator[Knocker]:
    street = Street()
    yield street.knock(gate.endpoint, b"\xff\x00stranger")
    street.close()


def mutated(frame: bytes, cuts: list[tuple[int, bytes]]) -> bytes:
    for at, piece in cuts:
        at %= len(frame) + 1
        frame = frame[:at] + piece + frame[at + len(piece) // 2 :]
    return frame


JSONLIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=12), inner, max_size=6),
    max_leaves=20,
)
FIELDS = sorted({field.name for kind in CLIENT_MESSAGES for field in msgspec.structs.fields(type(kind))} | {"type"})
TAGS = [str(type(kind).__struct_config__.tag) for kind in CLIENT_MESSAGES]
FIRST = st.one_of(
    st.binary(max_size=300),
    st.builds(
        mutated,
        st.sampled_from([encode_message(message) for message in CLIENT_MESSAGES]),
        st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=8)), max_size=4),
    ),
    st.builds(
        lambda tag, rest: msgpack.packb({**rest, "type": tag}),
        st.sampled_from(TAGS),
        st.dictionaries(st.sampled_from(FIELDS), JSONLIKE, max_size=10),
    ),
)
MESSAGE = st.builds(lambda first, rest: [first, *rest], FIRST, st.lists(st.binary(max_size=100), max_size=4))


@seed(SEED)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=st.lists(MESSAGE, min_size=1, max_size=8), known=st.booleans())
def test_no_frames_stop_the_loop(gate: Gate, witness: Knocker, stranger: Knocker, messages: list[list[bytes]], known: bool) -> None:
    if known:
        stranger.socket.send(encode_message(a_hello(Role.ENV, "stranger")))
    for frames in messages:
        stranger.socket.send_multipart(frames)
    while stranger.socket.poll(0):
        stranger.socket.recv_multipart()
    assert witness.ask_status().body["phase"] == "starting"
    assert gate.error is None


def test_what_came_of_it_breaks_no_invariant(gate: Gate, witness: Knocker) -> None:
    assert witness.ask_status()
    assert violations(gate.driver.state) == []


@pytest.mark.parametrize("reads", [True, False], ids=["who reads the refusals", "who does not"])
def test_a_flood_of_nonsense_keeps_memory_within_what_is_stated(gate: Gate, witness: Knocker, street: Street, reads: bool) -> None:
    flooder = street.knock(gate.endpoint, f"flooder-{reads}/i1")
    witness.ask_status()
    process, nonsense = psutil.Process(), b"\xc1" * 16_384
    before, most = process.memory_info().rss, 0
    for number in range(20_000):
        flooder.socket.send(nonsense, copy=True)
        while reads and flooder.socket.poll(0):
            flooder.socket.recv()
        if number % 50 == 0:  # the sender's own queue lies in this process too: it is kept short by asking in between
            witness.ask_status()
            most = max(most, process.memory_info().rss - before)
    assert most < STATED_BYTES


def test_an_oversized_frame_closes_its_connection_and_nobody_elses(gate: Gate, witness: Knocker, street: Street) -> None:
    big = street.knock(gate.endpoint, "big/i1")
    big.socket.send_multipart([encode_message(Heartbeat()), bytes(MAX_FRAME_BYTES + 1)])
    big.say(StatusAsked())
    assert witness.ask_status()
    until(lambda: big.say(StatusAsked()) or big.socket.poll(50), "the sender is back on a new connection")


def test_our_client_says_that_a_frame_is_too_large_instead_of_trying_for_ever(gate: Gate) -> None:
    client = Client(gate.endpoint, Role.ENV, "env-big", lambda base: base)
    try:
        client.say_hello()
        until(lambda: any(isinstance(message, Welcome) for message, _ in client.poll(0.05)), "the welcome")
        limit = gate.driver.state.config["broker"]["max_frame_bytes"]  # type: ignore[index, call-overload]
        with pytest.raises(WireError, match="max_frame_bytes"):
            client.send(Commit(), [bytes(limit + 1)])
        assert client.unanswered == 0
    finally:
        client.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"", b"", b""],
        [b"\x91" * 200_000],
        [b"\x81\xa4type\xa5hello"],
        [msgpack.packb({"type": "hello", "protocol": 1, "schema": 1, "role": "king", "name": "x", "incarnation": "y", "pipeline": ""})],
        [msgpack.packb({"type": "of another protocol"})],
        [msgpack.packb({"type": "commit", "acks": [2**70 % 2**64] * 10, "epoch": -1})],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\xc6\xff\xff\xff\xff"],
        [encode_message(Heartbeat())] + [b"x"] * (FRAMES_MAX + 1),
    ],
    ids=["empty", "empties", "deep", "cut off", "unknown role", "unknown type", "big numbers", "long list", "long bytes", "many frames"],
)
def test_what_is_no_message_is_refused_with_a_reason(gate: Gate, witness: Knocker, street: Street, frames: list[bytes]) -> None:
    sender = street.knock(gate.endpoint, "odd/i1")
    sender.socket.send_multipart(frames)
    answer = sender.hear_a(Refuse)
    assert answer.reason in ("bad_message", "hello_first")
    assert witness.ask_status()


def test_another_schema_is_refused_for_good(gate: Gate, street: Street) -> None:
    answer = street.knock(gate.endpoint, "old/i1").hello(Role.ENV, "old", schema=1)
    assert isinstance(answer, Refuse)
    assert (answer.reason, answer.fatal) == ("schema", True)


def test_one_first_frame_is_read_up_to_its_bound_only(gate: Gate, street: Street, tmp_path: Path) -> None:
    assert MAX_FRAME_BYTES < MESSAGE_BYTES_MAX
    sender = street.knock(gate.endpoint, "stats/i1")
    sender.hello(Role.ENV, "stats")
    for number in range(30):
        sender.say(Heartbeat(stats={f"gauge-{number}-{each}": 1.0 for each in range(500)}, waiting="x" * 100_000))
    sender.say(StatusAsked())
    until(lambda: gate.driver.state.clients["stats"].waiting != "", "the heartbeats are read")
    client = gate.driver.state.clients["stats"]
    assert len(client.stats) <= 1000
    assert len(client.waiting) <= 500


def test_every_client_message_has_a_specimen() -> None:
    from typing import get_args

    from schemas.messages import ClientMessage

    assert {type(message) for message in CLIENT_MESSAGES} == set(get_args(ClientMessage))
    assert EDGES
