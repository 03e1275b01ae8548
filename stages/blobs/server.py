"""Serves blobs: one ROUTER, one thread that answers, one that reads what has to be read through before it can be answered.

    question ─► is its key allowed? ─► open already? ──yes──► answer
                                            └──no──► reader: opens, digests ─► answer

Promises: who is not on the allow-list gets no answer; a question costs at most one chunk of memory until it is sent, and a peer that does
not read what it asked for gets no more; strange frames never stop the loop. Knows neither broker nor records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
import zmq

from broker.doorkeeper import AllowList, Doorkeeper
from schemas.config.broker import is_routable
from schemas.errors import BlobError, ConfigError, WireError
from stages.blobs import wire
from stages.blobs.shelf import Book, Shelf

log = structlog.get_logger(__name__)

UNSENT_MESSAGES = 32
"""Answers to one connection that wait in memory, a chunk each; a receiver asks for fewer at a time: only who does not read meets this."""
UNREAD_MESSAGES = 64
"""Questions of one connection that wait."""
LOOK_S = 0.5
"""Between two looks at the allow-list."""
TAKEN = 64
"""Questions taken in a row."""
OWED_MAX = 1024
"""Answers that wait for the reader; beyond it who asks has to ask again."""
READING_S = 2.0
"""Who waits for a file that is being read through hears of it so often, well within a receiver's patience."""
READING = wire.encode(wire.Reading())
HANDSHAKE_MS = 10_000
PING_MS, PING_TIMEOUT_MS = 3_000, 12_000
"""As the broker's: whose machine is gone does not hold a connection."""


class BlobServer:
    """Binds `endpoint` (`tcp://<address>:<port>`, port `*`: any) and serves `shelf` in a thread of its own until `close`.

    Raises ConfigError where the endpoint cannot be had, or where others can reach it and no keys are asked for.
    """

    def __init__(self, endpoint: str, shelf: Shelf, keys: AllowList | None = None) -> None:
        if keys is None and is_routable(endpoint):
            raise ConfigError(f"blobs at {endpoint}: others can reach this address, and no keys are asked for; tidemill keys new NAME")
        self._shelf = shelf
        self._context = zmq.Context()
        self._router = self._socket(endpoint)
        self._doorkeeper: Doorkeeper | None = None
        try:
            self._doorkeeper = None if keys is None else Doorkeeper(self._context, self._router, keys)
            self._router.bind(endpoint)
        except (zmq.ZMQError, ConfigError) as error:
            self._end()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"blobs at {endpoint}: {error.strerror}; is another server using it?") from error
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="blob-reader")
        self._owed: deque[tuple[bytes, Future[list[bytes]]]] = deque()
        self._ending = threading.Event()
        self._look_at = self._tell_at = 0.0
        self.sent_bytes = 0
        self._bell, self._ringer = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._bell.bind("inproc://bell")
        self._ringer.connect("inproc://bell")
        self._ringing = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="blob-server", daemon=True)
        self._thread.start()

    def _socket(self, endpoint: str) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, UNSENT_MESSAGES)
        router.setsockopt(zmq.RCVHWM, UNREAD_MESSAGES)
        router.setsockopt(zmq.MAXMSGSIZE, wire.QUESTION_BYTES_MAX)
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        router.setsockopt(zmq.HEARTBEAT_IVL, PING_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, PING_TIMEOUT_MS)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.IPV6, int("[" in endpoint))
        return router

    def close(self) -> None:
        """Ends the threads and frees the port."""
        self._ending.set()
        self._ring()
        self._thread.join()

    def look_at_the_list(self) -> None:
        """The allow-list has changed: it counts from now on, not from the next look."""
        self._look_at = 0.0
        self._ring()

    def _ring(self) -> None:
        """Wakes the loop, from any thread."""
        with self._ringing, contextlib.suppress(zmq.ZMQError):
            self._ringer.send(b"", zmq.NOBLOCK)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        try:
            while not self._ending.is_set():
                ready = dict(poller.poll(int(1e3 * LOOK_S)))
                self._refresh()
                if self._router in ready:
                    self._take()
                if self._bell in ready:
                    self._drain_bell()
                self._pay()
        finally:
            self._reader.shutdown(wait=True, cancel_futures=True)
            self._end()

    def _refresh(self) -> None:
        if self._doorkeeper is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._doorkeeper.refresh()

    def _end(self) -> None:
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        self._context.destroy(linger=0)
        self._shelf.close()

    def _drain_bell(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                self._bell.recv(zmq.NOBLOCK)

    # --- questions ----------------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        for _ in range(TAKEN):
            try:
                first, *rest = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if not self._may_ask(first):
                continue
            try:
                question = wire.decode_question(bytes(rest[0].buffer) if len(rest) == 1 else b"")
            except WireError as error:
                self._send(first.bytes, [wire.encode(wire.Absent(what="", reason=str(error)))])
                continue
            self._answer(first.bytes, question)

    def _may_ask(self, identity: zmq.Frame) -> bool:
        if self._doorkeeper is None:
            return True
        try:
            public = str(identity.get("User-Id"))
        except (zmq.ZMQError, KeyError):
            return False
        return self._doorkeeper.holder(identity.bytes, public) is not None

    def _answer(self, identity: bytes, question: wire.Question) -> None:
        """At once where a file is open already; else the reader does it, and whoever asks meanwhile is not kept waiting."""
        if isinstance(question, wire.ChunkAsked) and (book := self._shelf.ready(question.digest)) is not None:
            self._send(identity, self._said(question, lambda: self._chunked(book, question)))
        elif len(self._owed) < OWED_MAX:
            answer = self._reader.submit(self._read, question)
            answer.add_done_callback(lambda _: self._ring())
            self._owed.append((identity, answer))

    def _pay(self) -> None:
        """What the reader has finished, in the order in which it was asked; who waits for it is told that it goes on."""
        while self._owed and self._owed[0][1].done():
            identity, answer = self._owed.popleft()
            self._send(identity, answer.result())
        if self._owed and time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + READING_S
            for identity in {identity for identity, _ in self._owed}:
                self._send(identity, [READING])

    def _read(self, question: wire.Question) -> list[bytes]:
        """In the reader's thread."""
        match question:
            case wire.ListAsked(place=place):
                return self._said(question, lambda: [wire.encode(wire.Listed(place=place, files=self._shelf.files(place)))])
            case wire.OutlineAsked():
                return self._said(question, lambda: _outlined(self._shelf.find(question.digest, question.place)))
            case wire.ChunkAsked():
                return self._said(question, lambda: self._chunked(self._shelf.find(question.digest, question.place), question))

    def _said(self, question: wire.Question, answer: Callable[[], list[bytes]]) -> list[bytes]:
        what = question.place if isinstance(question, wire.ListAsked) else question.digest
        try:
            return answer()
        except (BlobError, OSError) as error:
            return [wire.encode(wire.Absent(what=what, reason=str(error)))]

    def _chunked(self, book: Book, asked: wire.ChunkAsked) -> list[bytes]:
        return [wire.encode(wire.Chunked(digest=asked.digest, index=asked.index)), self._shelf.chunk(book, asked.index)]

    def _send(self, identity: bytes, frames: list[bytes]) -> None:
        """Lost where the peer is gone or does not read: it asks again once it does."""
        try:
            self._router.send(identity, zmq.NOBLOCK | zmq.SNDMORE)
            for frame in frames[:-1]:
                self._router.send(frame, zmq.NOBLOCK | zmq.SNDMORE)
            self._router.send(frames[-1], zmq.NOBLOCK, copy=False)
            self.sent_bytes += len(frames[-1])
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise


def _outlined(book: Book) -> list[bytes]:
    return [wire.encode(wire.Outlined(digest=book.outline.digest, bytes=book.outline.size)), book.outline.chunks]
