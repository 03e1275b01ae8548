"""Producer and consumer on bare ZeroMQ: a unit is one multipart message, an acknowledgement the number of messages taken so far."""

from __future__ import annotations

import zmq

from tools.bench.load import Job, Side, Sink, Source
from tools.bench.systems.zeromq import BACK

ZERO_COPY_BYTES = 65_536
COUNT_BYTES = 8
UNITS = 256
"""Taken at most before they are acknowledged."""


def _connected(endpoint: str) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.linger = 0
    socket.connect(endpoint)
    return socket


class Producer:
    """The side that puts."""

    def __init__(self, job: Job) -> None:
        self._load, self._source = job.load, Source(job.load)
        self._socket = _connected(job.endpoint)
        self._acknowledged = 0

    def run(self) -> Side:
        """Keeps the window full until the load ends, then waits for the last acknowledgement."""
        source = self._source
        while not source.ended or source.in_flight:
            while source.room >= self._load.per_commit:
                self._put()
            self._socket.poll()
            self._hear()
        return source.report()

    def _put(self) -> None:
        unit: list[bytes] = []
        while len(unit) < self._load.per_commit and not self._source.ended:
            unit.append(self._source.take())
        self._socket.send_multipart(unit, copy=len(unit[0]) < ZERO_COPY_BYTES)

    def _hear(self) -> None:
        try:
            while True:
                taken = int.from_bytes(self._socket.recv(zmq.NOBLOCK), "little")
                self._source.acknowledged(taken - self._acknowledged)
                self._acknowledged = taken
        except zmq.Again:
            return


class Consumer:
    """The side that takes and acknowledges."""

    def __init__(self, job: Job) -> None:
        self._sink = Sink()
        self._socket = _connected(job.endpoint + BACK)

    def run(self) -> Side:
        """Until the last message's acknowledgement was sent."""
        while not self._sink.ended:
            self._socket.poll()
            self._take()
            self._socket.send(self._sink.taken.to_bytes(COUNT_BYTES, "little"))
        return self._sink.report()

    def _take(self) -> None:
        try:
            for _ in range(UNITS):
                for message in self._socket.recv_multipart(zmq.NOBLOCK):
                    self._sink.take(message)
        except zmq.Again:
            return
