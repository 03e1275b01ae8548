"""What the reward stage and its worker processes say to each other: msgpack messages, each after its length.

stage ─ Begin, Judge, Judge ... ─► worker          frame = length (4 bytes, big-endian) | message
stage ◄─ Begun, Judged | Refused ... ─ worker
"""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from stages.reward.verifier import FinishedEpisode

_LENGTH = struct.Struct(">I")


class Begin(Struct, frozen=True, tag="begin"):
    """Import this verifier. `folders` are appended to Python's path where they are not on it."""

    verifier: str
    folders: tuple[str, ...]
    timeout_s: float


class Judge(Struct, frozen=True, tag="judge"):
    """Judge one episode; `number` comes back with the answer."""

    number: int
    episode: FinishedEpisode


class Begun(Struct, frozen=True, tag="begun"):
    """The verifier is imported."""


class Judged(Struct, frozen=True, tag="judged"):
    """The parts of the reward, before their weights; all finite."""

    number: int
    parts: dict[str, float]


class Refused(Struct, frozen=True, tag="refused"):
    """There is no reward, and why."""

    number: int
    reason: str


Request = Begin | Judge
Answer = Begun | Judged | Refused

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)


def framed(message: Request | Answer) -> bytes:
    """One frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(head: bytes) -> int:
    """Bytes of the message that follows the 4 bytes `head`."""
    return int(_LENGTH.unpack(head)[0])


def request_of(body: bytes) -> Request:
    """What the stage said."""
    return _requests.decode(body)


def take_answers(received: bytearray) -> list[Answer]:
    """All whole answers at the front of `received`, which they are taken from."""
    answers: list[Answer] = []
    while len(received) >= _LENGTH.size:
        end = _LENGTH.size + length_of(bytes(received[: _LENGTH.size]))
        if len(received) < end:
            break
        answers.append(_answers.decode(received[_LENGTH.size : end]))
        del received[:end]
    return answers
