"""The two unions of the protocol: closed, tagged once, and strict about what belongs to whom."""

from __future__ import annotations

from typing import get_args

import msgpack
import pytest

from schemas.codec import decode_broker_message, decode_client_message, encode_message
from schemas.errors import WireError
from schemas.messages import BrokerMessage, Bye, ClientMessage, Commit, Committed, Message, Numbered

CLIENT, BROKER = get_args(ClientMessage), get_args(BrokerMessage)


def all_below(kind: type) -> set[type]:
    return {kind, *(below for child in kind.__subclasses__() for below in all_below(child))}


def test_every_message_is_in_exactly_one_union() -> None:
    assert set(CLIENT) | set(BROKER) == all_below(Message) - {Message, Numbered}
    assert set(CLIENT).isdisjoint(BROKER)


@pytest.mark.parametrize("union", [CLIENT, BROKER], ids=["client", "broker"])
def test_tags_are_unique_within_a_direction(union: tuple[type, ...]) -> None:
    tags = [kind.__struct_config__.tag for kind in union]
    assert len(set(tags)) == len(tags)


def test_only_clients_number_their_messages() -> None:
    assert all_below(Numbered) - {Numbered} <= set(CLIENT)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(WireError):
        decode_client_message(encode_message(Committed(seq=1)))
    with pytest.raises(WireError):
        decode_broker_message(encode_message(Commit()))


def test_defaults_take_no_room_and_come_back() -> None:
    assert msgpack.unpackb(encode_message(Bye())) == {"type": "bye"}
    assert decode_client_message(msgpack.packb({"type": "bye"})) == Bye()


def test_a_field_of_a_later_build_is_passed_over() -> None:
    assert decode_client_message(msgpack.packb({"type": "bye", "mood": "fine"})) == Bye()


def test_numbers_are_not_read_from_texts() -> None:
    with pytest.raises(WireError, match="seq"):
        decode_broker_message(msgpack.packb({"type": "committed", "seq": "1"}))


def test_depth_is_bounded() -> None:
    deep: object = 1
    for _ in range(500):
        deep = {"a": deep}
    frame = msgpack.packb({"type": "status", "body": {}})
    assert decode_broker_message(frame)
    frame = b"\x82\xa4type\xa6status\xa4body" + b"\x81\xa1a" * 100_000 + b"\x01"
    with pytest.raises(WireError):
        decode_broker_message(frame)
