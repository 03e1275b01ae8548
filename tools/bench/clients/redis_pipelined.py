"""Producer and consumer on Redis Streams as redis-py's users write them: hiredis, the Unix socket, plain pipelines.

Less work than the others do: XADD in pipelines of the whole window whatever a unit of the load is, so nothing is atomic and 512 messages
share one answer. XREADGROUP up to 64; XACK and XDEL of all that arrived in one pipeline (a stream keeps entries until they are deleted).
"""

from __future__ import annotations

from typing import Any

import redis

from tools.bench.load import Job, Side, Sink, Source

GROUP = "consumers"
WAIT_MS = 500


class Producer:
    """The side that puts."""

    def __init__(self, job: Job) -> None:
        self._stream = job.channel
        self._source = Source(job.load)
        self._redis = redis.Redis(unix_socket_path=job.endpoint)
        self._redis.ping()

    def run(self) -> Side:
        """One pipeline after the other until the load ends."""
        while not self._source.ended:
            with self._redis.pipeline(transaction=False) as pipeline:
                while self._source.room:
                    pipeline.xadd(self._stream, {"m": self._source.take()})
                pipeline.execute()
            self._source.acknowledged(self._source.in_flight)
        return self._source.report()


class Consumer:
    """The side that takes and acknowledges."""

    read_at_once = 64

    def __init__(self, job: Job) -> None:
        self._stream = job.channel
        self._count = min(job.load.held, self.read_at_once)
        self._sink = Sink()
        self._redis = redis.Redis(unix_socket_path=job.endpoint)
        self._redis.xgroup_create(self._stream, GROUP, mkstream=True)

    def run(self) -> Side:
        """Until the last message is acknowledged and deleted."""
        while not self._sink.ended:
            answer: Any = self._redis.xreadgroup(GROUP, "consumer", {self._stream: ">"}, count=self._count, block=WAIT_MS)
            for _, entries in answer or ():
                self._settle(entries)
        return self._sink.report()

    def _settle(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for _, fields in entries:
            self._sink.take(fields[b"m"])
        numbers = [number for number, _ in entries]
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.xack(self._stream, GROUP, *numbers)
            pipeline.xdel(self._stream, *numbers)
            pipeline.execute()
