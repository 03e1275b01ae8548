"""Producer and consumer on a RabbitMQ quorum queue: pika's SelectConnection, the fastest of its adapters.

Publishes with confirms, the window unconfirmed at most; consumes with the window as prefetch and acknowledges up to 64 at a time
(`multiple`), the rest as soon as nothing more is at hand.
"""

from __future__ import annotations

from typing import Any

import pika
from pika.channel import Channel

from tools.bench.load import Job, Side, Sink, Source

ACKS_PER_COMMIT = 64
IDLE_SECONDS = 0.005
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class _Client:
    """A connection with one channel and the run's queue."""

    def __init__(self, job: Job) -> None:
        self._queue, self._load = job.channel, job.load
        parameters = pika.ConnectionParameters("127.0.0.1", int(job.endpoint), heartbeat=0)
        self._connection = pika.SelectConnection(parameters, on_open_callback=self._opened, on_open_error_callback=self._failed)
        self._channel: Channel
        self._loop.start()

    @property
    def _loop(self) -> Any:
        return self._connection.ioloop

    def _failed(self, _: Any, error: BaseException) -> None:
        raise error

    def _opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._declare)

    def _declare(self, channel: Channel) -> None:
        self._channel = channel
        channel.queue_declare(self._queue, durable=True, arguments={"x-queue-type": "quorum"}, callback=lambda _: self._prepare())

    def _prepare(self) -> None:
        raise NotImplementedError

    def _ready(self, _: Any = None) -> None:
        self._loop.stop()


class Producer(_Client):
    """The side that puts."""

    def __init__(self, job: Job) -> None:
        self._source = Source(job.load)
        self._confirmed = 0
        super().__init__(job)

    def _prepare(self) -> None:
        self._channel.confirm_delivery(self._on_confirm, callback=self._ready)

    def run(self) -> Side:
        """Keeps the window full until the load ends, then waits for the last confirm."""
        self._fill()
        self._loop.start()
        return self._source.report()

    def _fill(self) -> None:
        while self._source.room >= self._load.per_commit:
            for _ in range(self._load.per_commit):
                if not self._source.ended:
                    self._channel.basic_publish("", self._queue, self._source.take(), PERSISTENT)

    def _on_confirm(self, frame: Any) -> None:
        number = frame.method.delivery_tag
        if number > self._confirmed:  # single confirms of a multi-message batch come in order from one queue
            self._source.acknowledged(number - self._confirmed)
            self._confirmed = number
        self._fill()
        if self._source.ended and not self._source.in_flight:
            self._loop.stop()


class Consumer(_Client):
    """The side that takes and acknowledges."""

    def __init__(self, job: Job) -> None:
        self._sink = Sink()
        self._pending = 0
        self._last_tag = 0
        self._timer: Any = None
        super().__init__(job)

    def _prepare(self) -> None:
        self._channel.basic_qos(prefetch_count=self._load.held, callback=lambda _: self._consume())

    def _consume(self) -> None:
        self._channel.basic_consume(self._queue, self._on_message, callback=self._ready)

    def run(self) -> Side:
        """Until the last acknowledgement is sent; AMQP confirms none of a consumer."""
        self._loop.start()
        return self._sink.report()

    def _on_message(self, _: Channel, method: Any, __: Any, body: bytes) -> None:
        self._sink.take(body)
        self._pending += 1
        self._last_tag = method.delivery_tag
        if self._pending >= min(ACKS_PER_COMMIT, self._load.held) or self._sink.ended:
            self._acknowledge()
        elif self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._idle)

    def _idle(self) -> None:
        self._timer = None
        self._acknowledge()

    def _acknowledge(self) -> None:
        if self._pending:
            self._channel.basic_ack(self._last_tag, multiple=True)
            self._pending = 0
        if self._sink.ended:
            self._loop.call_later(0.0, self._loop.stop)
