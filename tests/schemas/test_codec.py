"""The codec: what goes in comes out, for every record and message; what is not what it says is refused with its place."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, get_args

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import (
    check_header,
    decode_broker_message,
    decode_client_message,
    decode_record,
    encode_message,
    encode_record,
    frames_digest,
    make_header,
)
from schemas.errors import WireError
from schemas.header import HEADER_BYTES_MAX, FrameInfo, Header
from schemas.messages import BrokerMessage, ClientMessage, Deliver
from schemas.records import RECORDS, Action, Record, Sampling, Ticket, Turn, VersionSpan, no_logprobs, no_tokens
from tests.schemas.record_strategies import ANY_RECORD, of_type, structs

HOUSE = Path(__file__).resolve().parents[2]
MESSAGES = [*get_args(ClientMessage), *get_args(BrokerMessage)]


def plain(record: Record) -> dict[str, Any]:
    """A record's values, arrays as (dtype, bytes): NaNs compare too."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    return {name: (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value for name, value in values.items()}


def on_the_wire(record: Record) -> list[bytes]:
    return [bytes(frame) for frame in encode_record(record)]


def a_header(record: Record, **fields: Any) -> Header:
    return make_header(record, encode_record(record), pipeline="p", queue="q", **fields)


def a_turn(tokens: np.ndarray | None = None) -> Turn:
    return Turn(context_digest=1, sampling=Sampling(), seed=2, tokens=np.array([5, 6], np.int32) if tokens is None else tokens)


def an_action() -> Action:
    return Action(
        finish_reason="stop", sample_spans=(VersionSpan(2, 4, 0),), kv_spans=(), tokens=np.array([5, 6], np.int32),
        logprobs=np.array([-1, -2], np.float32), kept_ids=no_tokens(), kept_counts=no_tokens(),
    )  # fmt: skip


# --- there and back -------------------------------------------------------------------------------------------------------------


@given(record=ANY_RECORD)
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    frames = on_the_wire(record)
    check_header(a_header(record), frames)
    assert plain(decode_record(type(record), frames)) == plain(record)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type[Any], data: st.DataObject) -> None:
    message = kind(**{name: data.draw(values) for name, values in fields_of(kind).items()})
    decode = decode_client_message if kind in get_args(ClientMessage) else decode_broker_message
    assert decode(encode_message(message)) == message


def fields_of(kind: type[Any]) -> dict[str, st.SearchStrategy[Any]]:
    import typing

    return {name: of_field(hint) for name, hint in typing.get_type_hints(kind).items() if name in kind.__struct_fields__}


def of_field(hint: Any) -> st.SearchStrategy[Any]:
    if hint is Header:
        return ANY_RECORD.map(a_header)
    if get_args(hint) == (Header, Ellipsis):
        return st.lists(ANY_RECORD.map(a_header), max_size=2).map(tuple)
    if get_args(hint) == (Deliver, Ellipsis):
        return st.lists(st.fixed_dictionaries(fields_of(Deliver)).map(lambda fields: Deliver(**fields)), max_size=2).map(tuple)
    if type(None) in get_args(hint):
        return st.none() | of_type(get_args(hint)[0])
    if isinstance(hint, type) and hint.__name__ == "Role":
        return st.sampled_from(list(hint))
    return of_type(hint)


def test_decoded_arrays_are_views_that_cannot_be_written() -> None:
    frames = on_the_wire(a_turn())
    tokens = decode_record(Turn, frames).tokens
    assert not tokens.flags.writeable
    assert tokens.base is not None


def test_an_array_that_is_not_contiguous_is_sent_as_its_values() -> None:
    sliced = np.arange(10, dtype=np.int32)[::2]
    assert list(decode_record(Turn, on_the_wire(a_turn(sliced))).tokens) == [0, 2, 4, 6, 8]


# --- the second reader ----------------------------------------------------------------------------------------------------------


@given(record=ANY_RECORD)
def test_any_msgpack_library_reads_every_record(record: Record) -> None:
    frames = on_the_wire(record)
    body = msgpack.unpackb(frames[0], strict_map_key=False)
    assert body["type"] == type(record).__struct_config__.tag
    assert [body[name] for name in record.arrays] == list(range(len(record.arrays)))
    for name, dtype in record.arrays.items():
        assert np.frombuffer(frames[1 + body[name]], dtype).tobytes() == getattr(record, name).tobytes()
    assert body.keys() - {"type"} == set(record.__struct_fields__)


@given(record=ANY_RECORD)
def test_what_another_msgpack_library_writes_is_read(record: Record) -> None:
    frames = on_the_wire(record)
    frames[0] = msgpack.packb(msgpack.unpackb(frames[0], strict_map_key=False))
    assert plain(decode_record(type(record), frames)) == plain(record)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_any_msgpack_library_reads_and_writes_every_message(kind: type[Any], data: st.DataObject) -> None:
    message = kind(**{name: data.draw(values) for name, values in fields_of(kind).items()})
    read = msgpack.unpackb(encode_message(message), strict_map_key=False)
    assert read["type"] == kind.__struct_config__.tag
    decode = decode_client_message if kind in get_args(ClientMessage) else decode_broker_message
    assert decode(msgpack.packb(read)) == message


# --- headers --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", RECORDS)
@given(data=st.data())
def test_a_header_with_the_largest_numbers_stays_within_its_limit(tag: str, data: st.DataObject) -> None:
    record = data.draw(structs(RECORDS[tag]))
    numbers = ("ticket", "group", "member", "attempt", "turn", "context_tokens", "new_tokens", "trainable_tokens", "oldest_version")
    fields = dict.fromkeys((*numbers, "newest_version", "lineage", "priority"), 2**63)
    header = make_header(record, encode_record(record), pipeline="p" * 64, queue="installs", purpose="train", truncated=True, reward=-1e300,
                         weights="f" * 16, **fields)  # fmt: skip
    assert len(msgspec.msgpack.encode(header)) <= HEADER_BYTES_MAX
    check_header(header, encode_record(record))


def test_absent_fields_take_no_room() -> None:
    ticket = Ticket(task_index=1, seed=2)
    assert msgpack.unpackb(msgspec.msgpack.encode(a_header(ticket))).keys() == {
        "record",
        "fingerprint",
        "pipeline",
        "queue",
        "frames",
        "digest",
    }


def changed(header: Header, **fields: Any) -> Header:
    return msgspec.structs.replace(header, **fields)


ACTION = an_action()
GOOD = a_header(ACTION)
INFOS = GOOD.frames


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (changed(GOOD, record="dream"), "unknown record 'dream'"),
        (changed(GOOD, fingerprint=1), "fingerprint 1 is not this build's"),
        (changed(GOOD, weights="x" * 600), "above 512 bytes"),
        (changed(GOOD, frames=INFOS[:-1]), "expected"),
        (changed(GOOD, frames=(INFOS[0], FrameInfo("<f4", (2,), 8), *INFOS[2:])), "expected"),
        (changed(GOOD, frames=(INFOS[0], FrameInfo("|O", (2,), 8), *INFOS[2:])), "expected"),
        (changed(GOOD, frames=(INFOS[0], FrameInfo("<i4", (3,), 8), *INFOS[2:])), "cannot hold"),
        (changed(GOOD, frames=(INFOS[0], FrameInfo("<i4", (1, 2), 8), *INFOS[2:])), "cannot hold"),
        (changed(GOOD, frames=(INFOS[0], FrameInfo("<i4", (1,), 4), *INFOS[2:])), "sizes"),
        (changed(GOOD, digest=1), "damaged on its way"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_refused_with_what_is_wrong(header: Header, what: str) -> None:
    with pytest.raises(WireError, match=re.escape(what)):
        check_header(header, on_the_wire(ACTION))


def test_a_flipped_bit_in_any_frame_is_noticed() -> None:
    frames = on_the_wire(ACTION)
    for index, frame in enumerate(frames):
        if frame:
            damaged = [*frames[:index], bytes([frame[0] ^ 1]) + frame[1:], *frames[index + 1 :]]
            with pytest.raises(WireError, match="damaged"):
                check_header(GOOD, damaged)


def test_a_header_without_a_digest_is_believed() -> None:
    check_header(changed(GOOD, digest=None), on_the_wire(ACTION))


def test_the_digest_is_over_the_frames_in_order() -> None:
    assert frames_digest([b"ab", b"c"]) == frames_digest([b"abc"]) != frames_digest([b"c", b"ab"])


# --- records that are not what they say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens", [np.array([1], np.int64), np.array([1.0], np.float32), np.array([[1]], np.int32), np.array(1, np.int32), np.array([1], ">i4")]
)
def test_an_array_of_another_dtype_or_shape_is_not_encoded(tokens: np.ndarray) -> None:
    with pytest.raises(WireError, match=r"Turn\.tokens"):
        encode_record(a_turn(tokens))


def test_an_object_without_a_place_on_the_wire_is_not_encoded() -> None:
    with pytest.raises(WireError, match="Turn holds .* type type"):
        encode_record(Turn(context_digest=1, sampling=Sampling(), seed=frozenset, tokens=no_tokens()))  # type: ignore[arg-type]


def body(**fields: Any) -> bytes:
    return msgpack.packb({"type": "turn", "context_digest": 1, "sampling": {}, "seed": 2, "tokens": 0, **fields})


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([body()], "1 frames, expected 2"),
        ([body(), b"", b""], "3 frames, expected 2"),
        ([body(tokens=1), b""], "not the index of a frame"),
        ([body(tokens=-1), b""], "not the index of a frame"),
        ([body(tokens=True), b""], "at `$.tokens`"),
        ([body(tokens=[1, 2]), b""], "at `$.tokens`"),
        ([body(), b"abc"], "does not hold <i4"),
        ([body(type="ticket"), b""], "not a Turn"),
        ([body(seed="x"), b""], "not a Turn"),
        ([b"\xc1", b""], "not a Turn"),
        ([b"", b""], "not a Turn"),
    ],
)
def test_a_record_that_is_not_what_it_says_is_refused(frames: list[bytes], what: str) -> None:
    with pytest.raises(WireError, match=re.escape(what)):
        decode_record(Turn, frames)


def test_an_array_field_that_points_at_another_dtype_is_refused() -> None:
    frames = on_the_wire(ACTION)
    names = msgpack.unpackb(frames[0])
    frames[0] = msgpack.packb({**names, "tokens": 1, "logprobs": 0})
    with pytest.raises(WireError, match="another dtype"):
        decode_record(Action, frames)


@given(frames=st.lists(st.binary(max_size=30), min_size=2, max_size=2))
def test_random_frames_are_a_record_or_a_wire_error(frames: list[bytes]) -> None:
    try:
        decode_record(Turn, frames)
    except WireError:
        return
    raise AssertionError("random bytes were read as a turn")


@given(frame=st.binary(max_size=60))
def test_random_bytes_are_a_message_or_a_wire_error(frame: bytes) -> None:
    for decode in (decode_client_message, decode_broker_message):
        try:
            message = decode(frame)
        except WireError:
            continue
        assert isinstance(message, tuple(MESSAGES))


def test_empty_logprobs_and_tokens_are_of_their_dtype() -> None:
    assert (no_tokens().dtype.str, no_logprobs().dtype.str) == ("<i4", "<f4")


# --- pickle nowhere -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["schemas", "broker"])
def test_neither_schemas_nor_broker_touch_pickle(folder: str) -> None:
    for file in (HOUSE / folder).rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
        names |= {alias.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import) for alias in node.names}
        assert not names & {"pickle", "marshal", "shelve", "eval", "exec"}, file
