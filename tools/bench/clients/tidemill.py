"""Producer and consumer on our broker: the `versions` queue, the one edge whose records need no ticket.

The trainer's role puts records whose one frame is the message; the weight-sync role leases them and acknowledges each by its lease. That is
the whole path of any record: decode, checks, journal, core, group commit, answer, delivery under a lease and credit, journaled
acknowledgement. Number and digest stay the same throughout, or the trainer's history would grow with every message.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import zmq

from broker.keys import ClientKeys, KeyDirectory, client_keys
from schemas.codec import frames_digest
from schemas.edges import Role
from schemas.header import FrameInfo, Header
from schemas.lock import fingerprint_of
from schemas.messages import Deliver
from tools.bench.load import Job, Side, Sink, Source
from tools.bench.systems.tidemill import KEY
from tools.bench.wire import Link

PIPELINE = "bench"
QUEUE = "versions"
ACKS_PER_COMMIT = 64
"""As the clients of the other systems: what arrived is acknowledged in units of at most this many."""
WAIT_MS = 500


class Producer:
    """The side that puts."""

    def __init__(self, job: Job) -> None:
        self._load = job.load
        self._source = Source(job.load)
        self._link = Link(zmq.Context(), job.endpoint, Role.ACTOR_TRAIN, f"producer-{job.channel}", _keys(job))
        self._counts: deque[tuple[int, int]] = deque()
        self._fingerprint = fingerprint_of("version")
        self._infos = (FrameInfo("msgpack", (job.load.bytes,), job.load.bytes),)
        self._link.hello({})
        self._link.welcomed()

    def run(self) -> Side:
        """Keeps the window full until the load ends, then waits for the last acknowledgement."""
        source = self._source
        while not source.ended or source.in_flight:
            while source.room >= self._load.per_commit:
                self._commit()
            self._link.socket.poll(WAIT_MS)
            self._link.receive()
            self._count_answers()
            self._link.beat()
        return source.report()

    def _commit(self) -> None:
        frames: list[bytes] = []
        while len(frames) < self._load.per_commit and not self._source.ended:
            frames.append(self._source.take())
        seq = self._link.commit(puts=[self._header(frame) for frame in frames], frames=frames)
        self._counts.append((seq, len(frames)))

    def _header(self, frame: bytes) -> Header:
        return Header(record="version", fingerprint=self._fingerprint, pipeline=PIPELINE, queue=QUEUE, frames=self._infos,
                      newest_version=1, lineage=0, weights="0123456789abcdef", digest=frames_digest((frame,)))  # fmt: skip

    def _count_answers(self) -> None:
        while self._counts and self._counts[0][0] <= self._link.answered:
            self._source.acknowledged(self._counts.popleft()[1])


class Consumer:
    """The side that leases and acknowledges."""

    def __init__(self, job: Job) -> None:
        self._sink = Sink()
        self._link = Link(zmq.Context(), job.endpoint, Role.WEIGHT_SYNC, f"consumer-{job.channel}", _keys(job))
        self._link.hello({QUEUE: job.load.held})
        self._link.welcomed()

    def run(self) -> Side:
        """Until the last message's acknowledgement is durable."""
        last = 0
        while not self._sink.ended or self._link.answered < last:
            self._link.socket.poll(WAIT_MS)
            leases = []
            for message, frames in self._link.receive():
                if isinstance(message, Deliver):
                    self._sink.take(frames[0])
                    leases.append(message.lease)
            for start in range(0, len(leases), ACKS_PER_COMMIT):
                last = self._link.commit(acks=leases[start : start + ACKS_PER_COMMIT])
            self._link.beat()
        return self._sink.report()


def _keys(job: Job) -> ClientKeys | None:
    directory = KeyDirectory(Path(job.keys))
    return client_keys(str(directory.client_file(KEY)), str(directory.path / "server.pub")) if job.keys else None
