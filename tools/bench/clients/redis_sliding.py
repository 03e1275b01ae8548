"""The same on Redis Streams, tuned: a window that slides, which redis-py's pipelines cannot, and reads of a whole window at once.

A chunk of XADDs is sent as soon as the window has room for it, replies are read as they come.
"""

from __future__ import annotations

from collections import deque

import redis

from tools.bench.clients import redis as plain
from tools.bench.load import Job, Side, Source

CHUNK = 64


class Producer:
    """The side that puts."""

    def __init__(self, job: Job) -> None:
        self._stream = job.channel
        self._source = Source(job.load)
        self._chunk = max(1, min(CHUNK, job.load.window // 2))
        self._connection = redis.Redis(unix_socket_path=job.endpoint).connection_pool.get_connection()
        self._chunks: deque[int] = deque()

    def run(self) -> Side:
        """Keeps the window full until the load ends, then waits for the last reply."""
        source = self._source
        while not source.ended or self._chunks:
            while source.room >= self._chunk:
                self._send()
            for _ in range(self._chunks.popleft()):
                self._connection.read_response()
                source.acknowledged(1)
        return source.report()

    def _send(self) -> None:
        commands: list[tuple[str | bytes, ...]] = []
        while len(commands) < self._chunk and not self._source.ended:
            commands.append(("XADD", self._stream, "*", "m", self._source.take()))
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        self._chunks.append(len(commands))


class Consumer(plain.Consumer):
    """The side that takes and acknowledges."""

    read_at_once = 1 << 20
