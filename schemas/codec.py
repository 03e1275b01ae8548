"""Bytes to messages and records, and back; strict, and never more than it was allowed to be.

A record becomes `[body, array, array, ...]`: the body is msgpack in which each array field holds the index of its
frame, counted from 0 after the body. Decoded arrays are read-only views of the frames: nothing is copied. No pickle, no
dtype that the record does not name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy import frombuffer, ndarray

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

    kind: type[Record]
    tag: str
    fingerprint: int
    arrays: tuple[tuple[str, np.dtype[Any]], ...]
    vectors: tuple[np.dtype[Any], ...]
    """Their dtypes alone."""
    nothing: tuple[np.ndarray, ...]
    """Their values where they are empty."""
    indices: tuple[int, ...]
    """Of their frames, as we write them."""
    pointed: Callable[[Any], tuple[Any, ...]]
    """The indices in a body; the arrays of a record."""
    dtypes: tuple[str, ...]
    """Of all its frames, the body's first."""
    items: tuple[int, ...]
    """Bytes of an item of each frame."""
    no_frames: tuple[FrameInfo, ...]
    """What is said of each frame where it is empty."""
    plain: Callable[[Any], tuple[Any, ...]]
    """Fields that are no arrays, in order."""
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
    vectors = tuple(np.dtype(dtype) for dtype in kind.arrays.values())
    return _Layout(
        kind=kind, tag=tag, fingerprint=fingerprint_of(tag), arrays=tuple(zip(kind.arrays, vectors, strict=True)), vectors=vectors,
        nothing=tuple(np.frombuffer(b"", dtype) for dtype in vectors), indices=tuple(range(len(vectors))),
        pointed=_getter(tuple(kind.arrays)), dtypes=("msgpack", *kind.arrays.values()),
        items=(1, *(dtype.itemsize for dtype in vectors)),
        no_frames=tuple(FrameInfo(dtype, (0,), 0) for dtype in ("msgpack", *kind.arrays.values())), plain=_getter(names), written=written,
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
_BY_TAG: dict[str, _Layout] = {layout.tag: layout for layout in _LAYOUTS.values()}

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
        frames: list[Frame] = [_encoder.encode(layout.written(*layout.plain(record), *layout.indices))]
    except TypeError as error:
        raise WireError(f"{type(record).__name__} holds what has no place on the wire: {error}") from error
    try:
        for value, dtype in zip(layout.pointed(record), layout.vectors):  # noqa: B905 - equally long by construction, as below: it costs 0.1 us
            if type(value) is not ndarray or value.dtype is not dtype or value.ndim != 1:
                _check_vectors(record, layout)
            frames.append(value.data.cast("B") if len(value) else b"")
    except TypeError:  # one of them is not contiguous
        frames[1:] = [np.ascontiguousarray(value).data.cast("B") if len(value) else b"" for value in layout.pointed(record)]
    return frames


def _check_vectors(record: Record, layout: _Layout) -> None:
    """The long way: a dtype may be equal without being the same object."""
    for (name, dtype), value in zip(layout.arrays, layout.pointed(record), strict=True):
        if not isinstance(value, ndarray):
            raise WireError(f"{type(record).__name__}.{name} holds a {type(value).__name__}, not a {dtype.str} vector")
        if value.ndim != 1 or value.dtype.str != dtype.str:
            raise WireError(f"{type(record).__name__}.{name}: {value.dtype.str}{value.shape}, not a {dtype.str} vector")


def frame_infos(record: Record, frames: Sequence[Frame]) -> tuple[FrameInfo, ...]:
    """What a header says of `frames`, the result of `encode_record(record)`."""
    layout = _LAYOUTS[type(record)]
    return tuple(
        [
            FrameInfo(dtype, (size // item,), size) if (size := len(frame)) else nothing
            for dtype, item, nothing, frame in zip(layout.dtypes, layout.items, layout.no_frames, frames)  # noqa: B905
        ]
    )


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
    layout = _LAYOUTS[type(record)]
    return Header(
        record=layout.tag, fingerprint=layout.fingerprint, pipeline=pipeline, queue=queue, frames=frame_infos(record, frames),
        digest=frames_digest(frames), **fields,
    )  # fmt: skip


def check_header(header: Header, frames: Sequence[Frame], message_bytes: int = MESSAGE_BYTES_MAX) -> None:
    """Raises WireError where `frames` are not what `header` says, or the header is of another schema. `message_bytes`: size of the message
    that it stood in, if known: what is that small need not be measured."""
    layout = _BY_TAG.get(header.record)
    if layout is None:
        raise WireError(f"unknown record {header.record!r}; known: {', '.join(_BY_TAG)}")
    if header.fingerprint != layout.fingerprint:
        raise WireError(f"{header.record}: fingerprint {header.fingerprint} is not this build's {layout.fingerprint}")
    if message_bytes > HEADER_BYTES_SURE and len(_encoder.encode(header)) > HEADER_BYTES_MAX:
        raise WireError(f"{header.record}: header above {HEADER_BYTES_MAX} bytes")
    if len(header.frames) != len(layout.dtypes) or len(frames) != len(layout.dtypes):
        _refuse_frames(header, frames, layout)
    for info, dtype, item, frame in zip(header.frames, layout.dtypes, layout.items, frames):  # noqa: B905
        size = len(frame)
        if info.bytes != size or info.dtype != dtype or len(info.shape) != 1 or info.shape[0] * item != size:
            _refuse_frames(header, frames, layout)
    if header.digest is not None and header.digest != frames_digest(frames):
        raise WireError(f"{header.record}: frames do not match their digest; the message was damaged on its way")


def _refuse_frames(header: Header, frames: Sequence[Frame], layout: _Layout) -> NoReturn:
    infos = header.frames
    if (dtypes := tuple(info.dtype for info in infos)) != layout.dtypes:
        raise WireError(f"{header.record}: frames {list(dtypes)}, expected {list(layout.dtypes)}")
    if (said := [info.bytes for info in infos]) != (found := [len(frame) for frame in frames]):
        raise WireError(f"{header.record}: frame sizes {found} are not the header's {said}")
    info = next(info for info, item in zip(infos, layout.items, strict=True) if info.shape != (info.bytes // item,) or info.bytes % item)
    raise WireError(f"{header.record}: {info.bytes} bytes cannot hold {info.dtype}{list(info.shape)}")


def decode_record(kind: type[RecordT], frames: Sequence[Frame]) -> RecordT:
    """The record in `[body, array, ...]`. Raises WireError where it is not a `kind` with its declared arrays."""
    layout = _LAYOUTS[kind]
    if len(frames) != len(layout.dtypes):
        raise WireError(f"{kind.__name__}: {len(frames)} frames, expected {len(layout.dtypes)}")
    try:
        body = layout.reader.decode(frames[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error
    arrays = frames[1:]
    if (pointed := layout.pointed(body)) != layout.indices:
        arrays = _pointed_at(layout, pointed, frames)
    fields = msgspec.structs.asdict(body)
    try:
        for (name, dtype), nothing, frame in zip(layout.arrays, layout.nothing, arrays):  # noqa: B905
            fields[name] = frombuffer(frame, dtype) if frame else nothing
    except ValueError as error:
        _refuse_arrays(layout, arrays, error)
    return kind(**fields)


def _refuse_arrays(layout: _Layout, arrays: Sequence[Frame], error: ValueError) -> NoReturn:
    for (name, dtype), frame in zip(layout.arrays, arrays, strict=True):
        if len(frame) % dtype.itemsize:
            raise WireError(f"{layout.kind.__name__}.{name}: {len(frame)} bytes does not hold {dtype.str}: {error}") from error
    raise error


def _pointed_at(layout: _Layout, pointed: tuple[int, ...], frames: Sequence[Frame]) -> list[Frame]:
    """The arrays' frames where they lie in another order than ours."""
    for index, (name, dtype) in zip(pointed, layout.arrays, strict=True):
        field = f"{layout.kind.__name__}.{name}"
        if not 0 <= index < len(layout.arrays):
            raise WireError(f"{field}: {index!r} is not the index of a frame")
        if layout.vectors[index] is not dtype:
            raise WireError(f"{field} points at a frame of another dtype")
    return [frames[index + 1] for index in pointed]
