"""What is said on the blob channel: the first frame is a msgpack map with a `type`, an outline or a chunk follows as the second.

| asked | answered | second frame |
|---|---|---|
| `list` place | `listed` | |
| `outline` digest, place | `outlined` | the chunks' digests |
| `chunk` digest, index, place | `chunked` | the chunk's bytes |
| any | `absent` reason | |

Every question gets one answer, and before it a `reading` now and then while a file is read through for its digest; whoever asks keeps a
bounded number of questions open, which is all the credit that a sender has. `place` is the file (or, for `list`, the directory) as the
records name it: a server that shares that directory finds it there.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from schemas.errors import WireError
from schemas.records import BlobInfo


class BlobMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all messages of the channel."""


class ListAsked(BlobMessage, tag="list", frozen=True, kw_only=True):
    """Which files has this directory?"""

    place: str


class OutlineAsked(BlobMessage, tag="outline", frozen=True, kw_only=True):
    """How large is this blob, and what are its chunks' digests?"""

    digest: str
    place: str = ""


class ChunkAsked(BlobMessage, tag="chunk", frozen=True, kw_only=True):
    """One chunk of a blob."""

    digest: str
    index: int
    place: str = ""


class Listed(BlobMessage, tag="listed", frozen=True, kw_only=True):
    """The files of a directory."""

    place: str
    files: tuple[BlobInfo, ...]


class Outlined(BlobMessage, tag="outlined", frozen=True, kw_only=True):
    """The second frame holds the digests."""

    digest: str
    bytes: int


class Chunked(BlobMessage, tag="chunked", frozen=True, kw_only=True):
    """The second frame holds the bytes."""

    digest: str
    index: int


class Absent(BlobMessage, tag="absent", frozen=True, kw_only=True):
    """It cannot be had here, and why. `what`: the digest or the place that was asked for."""

    what: str
    reason: str


class Reading(BlobMessage, tag="reading", frozen=True, kw_only=True):
    """The answer takes longer: a file is being read through for its digest."""


Question = ListAsked | OutlineAsked | ChunkAsked
Answer = Listed | Outlined | Chunked | Absent | Reading

QUESTION_BYTES_MAX = 64 << 10
"""Of a question's only frame."""
ANSWER_BYTES_MAX = 64 << 20
"""Of any frame of an answer: the outline of 8 TiB."""

_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Answer)


def encode(message: Question | Answer) -> bytes:
    """The first frame."""
    return _encoder.encode(message)


def decode_question(frame: bytes) -> Question:
    """Raises WireError."""
    try:
        return _questions.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a question of the blob channel: {error}") from None


def decode_answer(frame: bytes) -> Answer:
    """Raises WireError."""
    try:
        return _answers.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not an answer of the blob channel: {error}") from None
