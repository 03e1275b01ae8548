"""A stage's link to nobody: it records what the stage says, after it went through the codec and back as on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from schemas.codec import check_header, decode_client_message, decode_record, encode_message, encode_record, make_header
from schemas.edges import EDGES
from schemas.header import Header
from schemas.messages import ClientMessage, Failure
from schemas.records import RECORDS, Record
from stages.service.stage import Delivery, Put

MessageT = TypeVar("MessageT")
RecordT = TypeVar("RecordT", bound=Record)
PIPELINE = "test"


@dataclass(frozen=True)
class PutSeen:
    queue: str
    header: Header
    record: Record


@dataclass(frozen=True)
class CommitSeen:
    acks: tuple[int, ...]
    puts: tuple[PutSeen, ...]
    fails: tuple[Failure, ...]


@dataclass
class FakeLink:
    """Satisfies `stages.service.stage.Link`. `said` holds commits and messages in the order they were said."""

    run_directory: str
    said: list[CommitSeen | ClientMessage] = field(default_factory=list)

    def commit(self, *, acks: Sequence[int] = (), puts: Sequence[Put] = (), fails: Sequence[Failure] = ()) -> None:
        self.said.append(CommitSeen(tuple(acks), tuple(seen(put) for put in puts), tuple(fails)))

    def send(self, message: ClientMessage) -> None:
        self.said.append(decode_client_message(encode_message(message)))

    @property
    def commits(self) -> list[CommitSeen]:
        return [each for each in self.said if isinstance(each, CommitSeen)]

    def messages(self, kind: type[MessageT]) -> list[MessageT]:
        return [each for each in self.said if isinstance(each, kind)]

    def records(self, kind: type[RecordT]) -> list[RecordT]:
        return [put.record for commit in self.commits for put in commit.puts if isinstance(put.record, kind)]


def seen(put: Put) -> PutSeen:
    """The record as its consumer would read it, under the header that the broker would see."""
    frames = encode_record(put.record)
    header = make_header(put.record, frames, pipeline=PIPELINE, queue=put.queue, **put.fields)
    check_header(header, frames)
    if EDGES[put.queue].record != header.record:
        raise AssertionError(f"queue {put.queue} carries {EDGES[put.queue].record}, not {header.record}")
    return PutSeen(put.queue, header, decode_record(RECORDS[header.record], frames))


def a_delivery(lease: int, record: Record, queue: str, **fields: object) -> Delivery:
    """`record` as a stage gets it under a lease; `fields` are of its header."""
    frames = encode_record(record)
    header = make_header(record, frames, pipeline=PIPELINE, queue=queue, **fields)
    return Delivery(lease=lease, header=header, frames=tuple(frames))
