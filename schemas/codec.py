"""Bytes to messages and records, and back; strict, and never more than it was allowed to be.

A record becomes `[body, array, array, ...]`: the body is msgpack in which each array field holds the index of its
frame, counted from 0 after the body. Decoded arrays are read-only views of the frames: nothing is copied. No pickle, no
dtype that the record does not name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

from schemas.errors import WireError
from schemas.header import HEADER_BYTES_MAX, FrameInfo, Header
from schemas.lock import fingerprint_of
from schemas.messages import BrokerMessage, ClientMessage, Deliver, Deliveries
from schemas.records import RECORDS, Record

Frame = bytes | memoryview
FrameT = TypeVar("FrameT", bound=Frame)
RecordT = TypeVar("RecordT", bound=Record)

MESSAGE_BYTES_MAX = 8 << 20
"""Most bytes of a message's first frame: a plan of ten thousand samples fits."""
FRAMES_MAX = 65_536
"""Most frames of one message."""

HEADER_BYTES_SURE = HEADER_BYTES_MAX - 8
"""A header in a message of this size is small enough however it was encoded: its one float takes up to eight bytes less as an integer."""


class _Layout(Struct, frozen=True):
    """How one record lies on the wire, worked out once. Bodies are read and written as Structs of their own, in which each array is an
    index: a hook for each array would cost more than all the rest."""

    tag: str
    arrays: tuple[tuple[str, np.dtype[Any]], ...]
    items: tuple[tuple[str, int], ...]
    """Of each array: the dtype's name and the bytes of an item."""
    indices: tuple[int, ...]
    """Of the arrays' frames, as we write them."""
    pointed: Callable[[Any], tuple[Any, ...]]
    """The indices in a body."""
    dtypes: list[str]
    """Of all its frames."""
    plain: Callable[[Record], tuple[Any, ...]]
    """Fields that are no arrays, in order."""
    names: tuple[str, ...]
    """Their names."""
    written: type[Any]
    reader: msgspec.msgpack.Decoder[Any]


def _layout_of(kind: type[Record]) -> _Layout:
    tag = str(kind.__struct_config__.tag)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    names = tuple(name for name in fields if name not in kind.arrays)
    order = (*names, *kind.arrays)
    if tuple(fields) != order:
        raise TypeError(f"{kind.__name__}: its arrays have to be its last fields, in the order of `arrays`")
    written = msgspec.defstruct(f"{kind.__name__}Body", order, tag=tag, frozen=True)
    read = msgspec.defstruct(f"{kind.__name__}Read", [_as_read(fields[name], kind) for name in order], tag=tag, frozen=True, kw_only=True)
    return _Layout(
        tag=tag, arrays=tuple((name, np.dtype(dtype)) for name, dtype in kind.arrays.items()),
        items=tuple((dtype, np.dtype(dtype).itemsize) for dtype in kind.arrays.values()), indices=tuple(range(len(kind.arrays))),
        pointed=_getter(tuple(kind.arrays)), dtypes=["msgpack", *kind.arrays.values()], plain=_getter(names), names=names, written=written,
        reader=msgspec.msgpack.Decoder(read),
    )  # fmt: skip


def _as_read(field: msgspec.structs.FieldInfo, kind: type[Record]) -> tuple[str, Any] | tuple[str, Any, Any]:
    wanted = int if field.name in kind.arrays else field.type
    if field.default is not msgspec.NODEFAULT:
        return field.name, wanted, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, wanted, msgspec.field(default_factory=field.default_factory)
    return field.name, wanted


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


_LAYOUTS: dict[type[Record], _Layout] = {kind: _layout_of(kind) for kind in RECORDS.values()}

_client_decoder = msgspec.msgpack.Decoder(ClientMessage)
_broker_decoder = msgspec.msgpack.Decoder(BrokerMessage)
_encoder = msgspec.msgpack.Encoder()


def encode_message(message: ClientMessage | BrokerMessage) -> bytes:
    """The first frame of a message."""
    return _encoder.encode(message)


def decode_client_message(frame: Frame) -> ClientMessage:
    """Raises WireError where `frame` is not a message that a client may send."""
    message: ClientMessage = _decode(_client_decoder, frame)
    return message


def decode_broker_message(frame: Frame) -> BrokerMessage:
    """Raises WireError where `frame` is not a message that a broker may send."""
    message: BrokerMessage = _decode(_broker_decoder, frame)
    return message


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: Frame) -> Any:
    if len(frame) > MESSAGE_BYTES_MAX:
        raise WireError(f"message of {len(frame)} bytes; at most {MESSAGE_BYTES_MAX} are read")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a message of this protocol: {error}") from error


def each_delivery(message: Deliveries, frames: Sequence[FrameT]) -> Iterator[tuple[Deliver, list[FrameT]]]:
    """The deliveries of a message, each with its own of the `frames`. Raises WireError where there are fewer."""
    start = 0
    for order in message.orders:
        end = start + order.context + len(order.header.frames)
        if end > len(frames):
            raise WireError(f"{len(frames)} frames follow; the deliveries describe more")
        yield order, list(frames[start:end])
        start = end


def encode_record(record: Record) -> list[Frame]:
    """`[body, array, ...]`. Raises WireError where an array has not its declared dtype or is not a vector."""
    layout = _LAYOUTS[type(record)]
    try:
        body = _encoder.encode(layout.written(*layout.plain(record), *layout.indices))
    except TypeError as error:
        raise WireError(f"{type(record).__name__} holds what has no place on the wire: {error}") from error
    return [body, *(_bytes_of(record, name, dtype) for name, dtype in layout.arrays)]


def _bytes_of(record: Record, name: str, dtype: np.dtype[Any]) -> Frame:
    value = getattr(record, name)
    if not isinstance(value, np.ndarray):
        raise WireError(f"{type(record).__name__}.{name} holds a {type(value).__name__}, not a {dtype.str} vector")
    if value.ndim != 1 or (value.dtype is not dtype and value.dtype.str != dtype.str):
        raise WireError(f"{type(record).__name__}.{name}: {value.dtype.str}{value.shape}, not a {dtype.str} vector")
    if not value.size:
        return b""
    data = value.data
    return (data if data.c_contiguous else np.ascontiguousarray(value).data).cast("B")


def frame_infos(record: Record, frames: Sequence[Frame]) -> tuple[FrameInfo, ...]:
    """What a header says of `frames`, the result of `encode_record(record)`."""
    size = len(frames[0])
    infos = [FrameInfo("msgpack", (size,), size)]
    for (name, item), frame in zip(_LAYOUTS[type(record)].items, frames[1:], strict=True):
        size = len(frame)
        infos.append(FrameInfo(name, (size // item,), size))
    return tuple(infos)


def frames_digest(frames: Sequence[Frame]) -> int:
    """xxh3-64 over the frames, in order."""
    if len(frames) == 1:
        value: int = xxhash.xxh3_64_intdigest(frames[0])
        return value
    state = xxhash.xxh3_64()
    for frame in frames:
        state.update(frame)
    return state.intdigest()


def make_header(record: Record, frames: Sequence[Frame], *, pipeline: str, queue: str, **fields: Any) -> Header:
    """A header for `record`, its frames measured and digested; `fields` are the rest of `Header`."""
    tag = _LAYOUTS[type(record)].tag
    return Header(
        record=tag, fingerprint=fingerprint_of(tag), pipeline=pipeline, queue=queue, frames=frame_infos(record, frames),
        digest=frames_digest(frames), **fields,
    )  # fmt: skip


def check_header(header: Header, frames: Sequence[Frame], message_bytes: int = MESSAGE_BYTES_MAX) -> None:
    """Raises WireError where `frames` are not what `header` says, or the header is of another schema. `message_bytes`: size of the message
    that it stood in, if known: what is that small need not be measured."""
    if header.record not in RECORDS:
        raise WireError(f"unknown record {header.record!r}; known: {', '.join(RECORDS)}")
    if header.fingerprint != fingerprint_of(header.record):
        raise WireError(f"{header.record}: fingerprint {header.fingerprint} is not this build's {fingerprint_of(header.record)}")
    if message_bytes > HEADER_BYTES_SURE and len(_encoder.encode(header)) > HEADER_BYTES_MAX:
        raise WireError(f"{header.record}: header above {HEADER_BYTES_MAX} bytes")
    _check_frames(header, frames)


def _check_frames(header: Header, frames: Sequence[Frame]) -> None:
    layout = _LAYOUTS[RECORDS[header.record]]
    infos = header.frames
    if [info.dtype for info in infos] != layout.dtypes:
        raise WireError(f"{header.record}: frames {[info.dtype for info in infos]}, expected {layout.dtypes}")
    if [info.bytes for info in infos] != [len(frame) for frame in frames]:
        raise WireError(f"{header.record}: frame sizes {[len(f) for f in frames]} are not the header's {[i.bytes for i in infos]}")
    for info, (_, item) in zip(infos[1:], layout.items, strict=True):
        if len(info.shape) != 1 or info.shape[0] * item != info.bytes:
            raise WireError(f"{header.record}: {info.bytes} bytes cannot hold {info.dtype}{list(info.shape)}")
    if header.digest is not None and header.digest != frames_digest(frames):
        raise WireError(f"{header.record}: frames do not match their digest; the message was damaged on its way")


def decode_record(kind: type[RecordT], frames: Sequence[Frame]) -> RecordT:
    """The record in `[body, array, ...]`. Raises WireError where it is not a `kind` with its declared arrays."""
    layout = _LAYOUTS[kind]
    if len(frames) != len(layout.dtypes):
        raise WireError(f"{kind.__name__}: {len(frames)} frames, expected {len(layout.dtypes)}")
    try:
        body = layout.reader.decode(frames[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error
    fields = dict(zip(layout.names, layout.plain(body), strict=True))
    for (name, dtype), index, own in zip(layout.arrays, layout.pointed(body), layout.indices, strict=True):
        if index != own:
            _check_index(layout, f"{kind.__name__}.{name}", index, dtype)
        try:
            fields[name] = np.frombuffer(frames[index + 1], dtype)
        except ValueError as error:
            raise WireError(f"{kind.__name__}: frame {index + 1} does not hold {dtype.str}: {error}") from error
    return kind(**fields)


def _check_index(layout: _Layout, field: str, index: int, dtype: np.dtype[Any]) -> None:
    if not 0 <= index < len(layout.arrays):
        raise WireError(f"{field}: {index!r} is not the index of a frame")
    if layout.arrays[index][1] is not dtype:
        raise WireError(f"{field} points at a frame of another dtype")
