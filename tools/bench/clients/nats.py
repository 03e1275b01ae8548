"""Producer and consumer on NATS JetStream: nats-py, publishing without waiting, the window unacknowledged at most; pulls of up to 64, each
message acknowledged. The stream is a work queue: what is acknowledged leaves it.

A unit of several messages is an atomic batch where the server knows them (2.12; one acknowledgement a batch, as fast as message by message
here: what counts is the consumer's, one by one), else so many messages.
"""

from __future__ import annotations

import asyncio
from collections import deque

import nats
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NothingYet
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from tools.bench.load import Job, Side, Sink, Source

PULL = 64
WAIT_SECONDS = 0.5
BATCHES_SINCE = (2, 12)


class _Client:
    """A connection and the run's stream."""

    def __init__(self, job: Job) -> None:
        self._stream, self._load = job.channel, job.load
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._connect(job.endpoint))

    async def _connect(self, endpoint: str) -> None:
        self._nats = await nats.connect(endpoint, pending_size=64 << 20)
        self._jetstream = self._nats.jetstream()
        version = self._nats.connected_server_version
        known = (version.major, version.minor) >= BATCHES_SINCE and hasattr(StreamConfig, "allow_atomic")  # by server and client
        self._batches = self._load.per_commit > 1 and known
        config = StreamConfig(name=self._stream, subjects=[self._stream], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE)
        await self._jetstream.add_stream(config.evolve(allow_atomic=True) if self._batches else config)


class Producer(_Client):
    """The side that puts: an inbox of its own for the acknowledgements, which come in order."""

    def __init__(self, job: Job) -> None:
        self._source = Source(job.load)
        self._moved = asyncio.Event()
        self._units: deque[int] = deque()
        """Messages for each acknowledgement that is awaited."""
        self._batch = 0
        super().__init__(job)

    async def _connect(self, endpoint: str) -> None:
        await super()._connect(endpoint)
        self._inbox = self._nats.new_inbox()
        await self._nats.subscribe(self._inbox, cb=self._on_acknowledgement)

    async def _on_acknowledgement(self, message: Msg) -> None:
        if b'"error"' in message.data:
            raise RuntimeError(message.data.decode())
        if message.data:  # the messages of a batch before its last are answered with nothing
            self._source.acknowledged(self._units.popleft())
            self._moved.set()

    def run(self) -> Side:
        """Keeps the window full until the load ends, then waits for the last acknowledgement."""
        self._loop.run_until_complete(self._publish())
        return self._source.report()

    async def _publish(self) -> None:
        source = self._source
        while not source.ended or source.in_flight:
            while source.room >= self._load.per_commit:
                await self._put()
            self._moved.clear()
            if source.in_flight:
                await self._moved.wait()

    async def _put(self) -> None:
        messages: list[bytes] = []
        while len(messages) < self._load.per_commit and not self._source.ended:
            messages.append(self._source.take())
        if not self._batches:
            self._units.extend(1 for _ in messages)
            for message in messages:
                await self._nats.publish(self._stream, message, reply=self._inbox)
            return
        self._units.append(len(messages))
        self._batch += 1
        for number, message in enumerate(messages, 1):
            headers = {"Nats-Batch-Id": f"{self._stream}-{self._batch}", "Nats-Batch-Sequence": str(number)}
            if number == len(messages):
                headers["Nats-Batch-Commit"] = "1"
            await self._nats.publish(self._stream, message, reply=self._inbox if number == len(messages) else "", headers=headers)


class Consumer(_Client):
    """The side that takes and acknowledges."""

    def __init__(self, job: Job) -> None:
        self._sink = Sink()
        super().__init__(job)

    async def _connect(self, endpoint: str) -> None:
        await super()._connect(endpoint)
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=self._load.held)
        self._pulls = await self._jetstream.pull_subscribe(self._stream, durable="consumer", config=config)

    def run(self) -> Side:
        """Until the last acknowledgement has reached the server."""
        self._loop.run_until_complete(self._consume())
        return self._sink.report()

    async def _consume(self) -> None:
        while not self._sink.ended:
            try:
                messages = await self._pulls.fetch(min(PULL, self._load.held), timeout=WAIT_SECONDS)
            except NothingYet:
                continue
            for message in messages:
                self._sink.take(message.data)
                await message.ack()
        await self._nats.flush()
