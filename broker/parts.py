"""A client's socket, written and read with as few calls as it takes: what a message costs its stage, beside the work itself.

Promises: frames of `VIEW_BYTES` or more are views of what the socket received, smaller ones are bytes of their own; neither can be written.
Several deliveries in one message are read by the number of frames that it describes: asking the socket after each costs four times as much.
Knows no lease, number or epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import zmq

from schemas.codec import Frame, decode_broker_message
from schemas.errors import WireError
from schemas.messages import BrokerMessage, Deliver, Deliveries

VIEW_BYTES = 12_288
"""A copy of so much takes as long as a view of it (1.4 us); a small frame's copy takes 0.3 us."""

_put: Callable[..., object] = zmq.backend.Socket.send
"""Without the checks that pyzmq's own method makes for other kinds of sockets: half of what a frame costs."""
_UNKNOWN_BYTES = 0


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[Frame], zero_copy_bytes: int = 1 << 62) -> None:
    """One message. Parts of `zero_copy_bytes` or more are shared with the socket: they must never change."""
    last = len(parts) - 1
    for index, part in enumerate(parts):
        _put(socket, part, 0 if index == last else zmq.SNDMORE, len(part) < zero_copy_bytes)


def receive_parts(socket: zmq.Socket[bytes]) -> tuple[BrokerMessage, list[Frame]]:
    """The next message that is there, and its frames.

    Raises zmq.Again where none is, WireError where it is none of a broker's or has other frames than it describes; then it is gone.
    """
    first = socket.recv(zmq.NOBLOCK, copy=False)
    try:
        message = decode_broker_message(first.buffer)
    except WireError:
        if first.more:
            _rest(socket)
        raise
    if not first.more:
        return message, []
    if isinstance(message, Deliveries):
        return message, _frames(socket, list(chain.from_iterable(map(_of_delivery, message.orders))))
    return message, _rest(socket)


def _of_delivery(order: Deliver) -> list[int]:
    own = [info.bytes for info in order.header.frames]
    return [_UNKNOWN_BYTES] * order.context + own if order.context else own


def _frames(socket: zmq.Socket[bytes], sizes: Sequence[int]) -> list[Frame]:
    """As many as there are `sizes`; the last of them is asked whether it is the last."""
    frames: list[Frame] = []
    try:
        for size in sizes[:-1]:
            frames.append(socket.recv(zmq.NOBLOCK) if size < VIEW_BYTES else socket.recv(zmq.NOBLOCK, copy=False).buffer.toreadonly())
        last = socket.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again as error:  # frames of a message arrive together, or not at all
        raise WireError(f"{len(frames)} frames follow; the message describes {len(sizes)}") from error
    if last.more or not sizes:
        extra = len(_rest(socket)) if last.more else 0
        raise WireError(f"{len(frames) + 1 + extra} frames follow; the message describes {len(sizes)}")
    frames.append(_kept(last))
    return frames


def _rest(socket: zmq.Socket[bytes]) -> list[Frame]:
    """All frames up to the message's end."""
    frames: list[Frame] = []
    while True:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        frames.append(_kept(frame))
        if not frame.more:
            return frames


def _kept(frame: zmq.Frame) -> Frame:
    return frame.bytes if len(frame) < VIEW_BYTES else frame.buffer.toreadonly()
