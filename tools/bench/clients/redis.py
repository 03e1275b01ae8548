"""Producer and consumer on Redis Streams, as favourable to Redis as equal work allows.

Redis-py's connection without its pipelines, which cannot slide a window. A unit is atomic, as a commit of ours is: one message is an XADD,
several are one script of XADDs, which Redis runs and logs as a whole (MULTI and EXEC around them do the same for a quarter more processor
time). Units leave as soon as the window has room for a chunk of them, answers are read as they come. The consumer reads up to a whole
window, and acknowledges it in the round trip that reads the next.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import redis

from tools.bench.load import Job, Side, Sink, Source

GROUP = "consumers"
WAIT_MS = 500
CHUNK = 64
"""Messages worth a system call of their own."""
UNIT = "for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'm', ARGV[i]) end return #ARGV"
Command = tuple[str | bytes | int, ...]


class _Client:
    """A bare connection: commands go out together, answers come in order."""

    def __init__(self, job: Job) -> None:
        self._stream, self._load = job.channel, job.load
        self._redis = redis.Redis(unix_socket_path=job.endpoint, protocol=2)
        self._connection = self._redis.connection_pool.get_connection()

    def _send(self, *commands: Command) -> None:
        self._connection.send_packed_command(self._connection.pack_commands(commands))

    def _answer(self) -> Any:
        """Raises redis.ResponseError where it is one."""
        return self._connection.read_response()


class Producer(_Client):
    """The side that puts."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._source = Source(job.load)
        self._unit = job.load.per_commit
        self._chunk = max(self._unit, min(CHUNK, job.load.window // 2))
        self._script = str(self._redis.script_load(UNIT))
        self._units: deque[int] = deque()
        """Messages of each unit without an answer."""

    def run(self) -> Side:
        """Keeps the window full until the load ends, then waits for the last answer."""
        source = self._source
        while not source.ended or self._units:
            if source.room >= self._chunk:
                self._send(*self._commands(source.room // self._unit))
            if self._units:
                self._answer()
                source.acknowledged(self._units.popleft())
        return source.report()

    def _commands(self, units: int) -> list[Command]:
        commands: list[Command] = []
        while len(commands) < units and not self._source.ended:
            messages: list[bytes] = []
            while len(messages) < self._unit and not self._source.ended:
                messages.append(self._source.take())
            self._units.append(len(messages))
            commands.append(
                ("XADD", self._stream, "*", "m", *messages) if self._unit == 1 else ("EVALSHA", self._script, 1, self._stream, *messages)
            )
        return commands


class Consumer(_Client):
    """The side that takes and acknowledges."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._sink = Sink()
        self._redis.xgroup_create(self._stream, GROUP, mkstream=True)
        where = ("XREADGROUP", "GROUP", GROUP, "consumer")
        self._read: Command = (*where, "COUNT", job.load.held, "BLOCK", WAIT_MS, "STREAMS", self._stream, ">")

    def run(self) -> Side:
        """Until the last message is acknowledged and deleted."""
        self._send(self._read)
        while not self._sink.ended:
            self._settle(self._take(self._answer()))
        return self._sink.report()

    def _take(self, answer: Any) -> list[bytes]:
        """Numbers of the entries in it."""
        entries = answer[0][1] if answer else []
        for _, fields in entries:
            self._sink.take(fields[1])
        return [number for number, _ in entries]

    def _settle(self, numbers: list[bytes]) -> None:
        """A stream keeps acknowledged entries until they are deleted."""
        settling: list[Command] = [("XACK", self._stream, GROUP, *numbers), ("XDEL", self._stream, *numbers)] if numbers else []
        self._send(*settling, *(() if self._sink.ended else (self._read,)))
        for _ in settling:
            self._answer()
