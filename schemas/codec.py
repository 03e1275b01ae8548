"""Bytes to messages and records, and back; strict, and never more than it was allowed to be.

A record becomes `[body, array, array, ...]`: the body is msgpack in which each array field holds the index of its
frame, counted from 0 after the body. Decoded arrays are read-only views of the frames: nothing is copied. No pickle, no
dtype that the record does not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash

from schemas.errors import WireError
from schemas.header import HEADER_BYTES_MAX, FrameInfo, Header
from schemas.lock import fingerprint_of
from schemas.messages import BrokerMessage, ClientMessage
from schemas.records import RECORDS, Record

Frame = bytes | memoryview
RecordT = TypeVar("RecordT", bound=Record)

MESSAGE_BYTES_MAX = 8 << 20
"""Most bytes of a message's first frame: a plan of ten thousand samples fits."""
FRAMES_MAX = 65_536
"""Most frames of one message."""

HEADER_BYTES_SURE = HEADER_BYTES_MAX - 8
"""A header in a message of this size is small enough however it was encoded: its one float takes up to eight bytes less as an integer."""

_LAYOUTS = {
    tag: (("msgpack", *kind.arrays.values()), tuple(np.dtype(dtype).itemsize for dtype in kind.arrays.values()))
    for tag, kind in RECORDS.items()
}
"""By record: the dtypes of its frames, and the bytes of an item of each array."""

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


def encode_record(record: Record) -> list[Frame]:
    """`[body, array, ...]`. Raises WireError where an array has not its declared dtype or is not a vector."""
    arrays: list[np.ndarray] = []
    body = msgspec.msgpack.encode(record, enc_hook=_collect(record, arrays))
    return [body, *(array.data.cast("B") if array.size else b"" for array in arrays)]


def _collect(record: Record, arrays: list[np.ndarray]) -> Any:
    dtypes = list(record.arrays.values())

    def hook(value: Any) -> int:
        if not isinstance(value, np.ndarray):
            raise WireError(f"{type(record).__name__} holds a {type(value).__name__}, which has no place on the wire")
        index = len(arrays)
        if value.ndim != 1 or value.dtype.str != dtypes[index]:
            raise WireError(f"{type(record).__name__}.{list(record.arrays)[index]}: {value.dtype.str}{value.shape}, not a {dtypes[index]} vector")
        arrays.append(np.ascontiguousarray(value))
        return index

    return hook


def frame_infos(record: Record, frames: Sequence[Frame]) -> tuple[FrameInfo, ...]:
    """What a header says of `frames`, the result of `encode_record(record)`."""
    infos = [FrameInfo("msgpack", (len(frames[0]),), len(frames[0]))]
    for dtype, frame in zip(record.arrays.values(), frames[1:], strict=True):
        infos.append(FrameInfo(dtype, (len(frame) // np.dtype(dtype).itemsize,), len(frame)))
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
    tag = str(type(record).__struct_config__.tag)
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
    dtypes, sizes = _LAYOUTS[header.record]
    infos = header.frames
    if len(infos) != len(dtypes) or any(info.dtype != dtype for info, dtype in zip(infos, dtypes, strict=True)):
        raise WireError(f"{header.record}: frames {[info.dtype for info in infos]}, expected {list(dtypes)}")
    if len(frames) != len(infos) or any(info.bytes != len(frame) for info, frame in zip(infos, frames, strict=True)):
        raise WireError(f"{header.record}: frame sizes {[len(f) for f in frames]} are not the header's {[i.bytes for i in infos]}")
    for info, size in zip(infos[1:], sizes, strict=True):
        if info.shape != (info.bytes // size,) or info.bytes % size:
            raise WireError(f"{header.record}: {info.bytes} bytes cannot hold {info.dtype}{list(info.shape)}")
    if header.digest is not None and header.digest != frames_digest(frames):
        raise WireError(f"{header.record}: frames do not match their digest; the message was damaged on its way")


def decode_record(kind: type[RecordT], frames: Sequence[Frame]) -> RecordT:
    """The record in `[body, array, ...]`. Raises WireError where it is not a `kind` with its declared arrays."""
    dtypes = list(kind.arrays.values())
    if len(frames) != len(dtypes) + 1:
        raise WireError(f"{kind.__name__}: {len(frames)} frames, expected {len(dtypes) + 1}")

    def hook(wanted: type, value: Any) -> np.ndarray:
        if wanted is not np.ndarray or type(value) is not int or not 0 <= value < len(dtypes):
            raise WireError(f"{kind.__name__}: {value!r} is not the index of a frame")
        try:
            return np.frombuffer(frames[value + 1], dtypes[value])
        except ValueError as error:
            raise WireError(f"{kind.__name__}: frame {value + 1} does not hold {dtypes[value]}: {error}") from error

    try:
        record = msgspec.msgpack.decode(frames[0], type=kind, dec_hook=hook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error
    _check_dtypes(record)
    return record


def _check_dtypes(record: Record) -> None:
    for name, dtype in record.arrays.items():
        if getattr(record, name).dtype.str != dtype:
            raise WireError(f"{type(record).__name__}.{name} points at a frame of another dtype")
