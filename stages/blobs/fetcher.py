"""Brings blobs into this machine's cache: the edge around `core/transfer.py`.

Owns the connections and the files that are being written. Promises: every chunk is checked before it counts and the whole carries the
digest that was asked for; what has arrived stays when a source, the connection or this process ends, and the next one goes on there; memory
is a window of chunks. Blocks its thread; `stop` ends it from another one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
import zmq

from broker.keys import ClientKeys
from schemas.errors import BlobError, NotServedError
from schemas.messages import Source
from schemas.records import BlobInfo
from stages.blobs import wire
from stages.blobs.cache import Cache
from stages.blobs.core.transfer import PASSES_MAX, PAUSE_S, Act, Ask, AskOutline, Done, GaveUp, Open, Transfer
from stages.blobs.line import Broken, Line, Received
from stages.blobs.outline import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    blob_digest,
    check_names,
    chunk_count,
    chunk_digest,
    chunk_size,
    is_digest,
)

log = structlog.get_logger(__name__)

WINDOW = 16
"""Chunks asked for ahead: what 10 Gbit a second carry in a round trip of 13 ms. Fewer than the server lets wait for one connection: what it
drops is asked for again only after `PATIENCE_S`. Ten receivers may cost a server ten times so much memory."""
PATIENCE_S = 10.0
"""Without an answer for so long, a source is left for the next."""
LOOK_S = 0.25
"""Between two looks at whether it should stop."""


class Fetcher:
    """One per process: it may be used from any thread, by one at a time."""

    def __init__(self, cache: Cache, keys: ClientKeys | None, window: int = WINDOW, patience_s: float = PATIENCE_S) -> None:
        self.cache = cache
        self._keys = keys
        self._window, self._patience_s = window, patience_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._stopped = threading.Event()
        self.fetched_bytes = 0
        """Of chunks that came and were whole, since the start."""

    def blob(self, digest: str, size: int, place: str, sources: Sequence[Source]) -> Path:
        """The blob's file in the cache, fetched unless it is there. `place`: where its producer has it. Raises BlobError, OSError."""
        if not is_digest(digest):
            raise BlobError(f"{digest[:40]!r} is no digest")
        found = self.cache.blob(digest)
        if found is not None:
            return found
        with self.cache.lock(digest, self._stopped.is_set):
            return self.cache.blob(digest) or _Receiving(self, digest, size, place, sources).run()

    def files(self, place: str, sources: Sequence[Source]) -> tuple[BlobInfo, ...]:
        """Which files the producer's directory has. Raises NotServedError where no source shares it."""
        reasons = ["no host serves blobs in this run"]
        for attempt in range(PASSES_MAX if sources else 0):
            reasons = []
            self._stopped.wait(PAUSE_S if attempt else 0.0)
            for source in sources:
                answer = self._ask_for_files(place, source)
                if isinstance(answer, wire.Listed):
                    check_names(answer.files)
                    return answer.files
                reasons.append(f"{source.endpoint}: {answer}")
        raise NotServedError(f"{place}: " + "; ".join(reasons))

    def _ask_for_files(self, place: str, source: Source) -> wire.Listed | str:
        """The list, or why there is none. Waits while the source reads the files of the directory through."""
        line, deadline = self.line(source), time.monotonic() + self._patience_s
        try:
            line.ask(wire.ListAsked(place=place))
            while time.monotonic() < deadline and not self._stopped.is_set():
                received = line.receive(LOOK_S)
                if isinstance(received, Broken):
                    return received.reason
                for answer, _ in received:
                    if isinstance(answer, wire.Reading):
                        deadline = time.monotonic() + self._patience_s
                        continue
                    return answer if isinstance(answer, wire.Listed) else getattr(answer, "reason", "it answers something else")
            return "no answer"
        finally:
            line.close()

    def stop(self) -> None:
        """Ends what is on its way, soon; what has come stays for the next time."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def close(self) -> None:
        """After `stop`, once nothing is on its way."""
        if self._context is not None:
            self._context.destroy(linger=0)

    def line(self, source: Source) -> Line:
        """A connection to a source."""
        if self._context is None:
            self._context = zmq.Context()
        return Line(self._context, source, self._keys)

    def transfer(self, sources: Sequence[Source]) -> Transfer:
        """A transfer from these, by this fetcher's window and patience."""
        return Transfer(tuple(source.endpoint for source in sources), self._window, self._patience_s)


class _Receiving:
    """One blob, by one thread, under the blob's lock."""

    def __init__(self, fetcher: Fetcher, digest: str, size: int, place: str, sources: Sequence[Source]) -> None:
        self._fetcher, self._sources = fetcher, sources
        self._digest, self._size, self._place = digest, size, place
        self._transfer = fetcher.transfer(sources)
        self._line: Line | None = None
        self._resumes = fetcher.cache.partial(digest).exists()
        self._outline: bytes | None = None
        self._missing: set[int] = set()
        self._ended: Done | GaveUp | None = None

    def run(self) -> Path:
        self._descriptor = self._fetcher.cache.begin(self._digest, self._size)
        try:
            self._perform(self._transfer.begin(time.monotonic()))
            while self._ended is None:
                self._turn()
            if isinstance(self._ended, GaveUp):
                raise BlobError(f"{self._place or self._digest} could not be fetched: {self._ended.reason}")
            return self._fetcher.cache.finish(self._digest, self._descriptor)
        finally:
            self._leave()
            os.close(self._descriptor)

    def _turn(self) -> None:
        if self._fetcher.stopped:
            raise BlobError(f"{self._place or self._digest}: the fetch was stopped")
        due = self._transfer.next_wake()
        wait_s = min(LOOK_S, max(0.0, (due or 0.0) - time.monotonic()))
        if self._line is None or self._transfer.source < 0:
            time.sleep(wait_s)
        else:
            self._hear(self._line.receive(wait_s))
        self._perform(self._transfer.wake(time.monotonic()))

    def _hear(self, received: list[Received] | Broken) -> None:
        if isinstance(received, Broken):
            self._perform(self._transfer.failed(received.reason, time.monotonic()))
            return
        line = self._line
        for answer, frame in received:
            if self._line is not line:
                return  # what else this source sent is not waited for any more
            self._perform(self._judged(answer, frame.buffer if frame is not None else memoryview(b"")))

    def _judged(self, answer: wire.Answer, data: memoryview) -> list[Act]:
        now = time.monotonic()
        match answer:
            case wire.Outlined():
                return self._outlined(data, now)
            case wire.Chunked(index=index):
                return self._chunked(index, data, now)
            case wire.Reading():
                self._transfer.reading(now)
                return []
            case wire.Absent(reason=reason):
                return self._transfer.failed(reason, now)
            case _:
                return self._transfer.failed("it answers something else", now)

    def _outlined(self, data: memoryview, now: float) -> list[Act]:
        if self._outline is None:
            outline = bytes(data)
            if len(outline) != DIGEST_BYTES * chunk_count(self._size) or blob_digest(self._size, outline) != self._digest:
                return self._transfer.failed("its outline is not this blob's", now)
            self._outline = outline
            self._missing = self._not_here()
        return self._transfer.outlined(self._missing, time.monotonic())

    def _not_here(self) -> set[int]:
        """Chunks that an earlier attempt has not brought; its file may be older than the last power cut, so it is read, not believed."""
        every = range(chunk_count(self._size))
        if not self._resumes:
            return set(every)
        here = {index for index in every if self._is_whole(index, os.pread(self._descriptor, CHUNK_BYTES, index * CHUNK_BYTES))}
        log.info("fetch resumed", blob=self._digest, chunks=len(every), here=len(here))
        return set(every) - here

    def _is_whole(self, index: int, data: bytes | memoryview) -> bool:
        assert self._outline is not None
        wanted = self._outline[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        return len(data) == chunk_size(self._size, index) and chunk_digest(data) == wanted

    def _chunked(self, index: int, data: memoryview, now: float) -> list[Act]:
        if self._outline is None or index not in self._missing:
            return []
        whole = self._is_whole(index, data)
        if whole:
            _write(self._descriptor, data, index * CHUNK_BYTES)
            self._missing.discard(index)
            self._fetcher.fetched_bytes += len(data)
        else:
            log.warning("chunk came damaged", blob=self._digest, chunk=index, source=self._sources[self._transfer.source].endpoint)
        return self._transfer.arrived(index, now, whole=whole)

    def _perform(self, acts: Sequence[Act]) -> None:
        for act in acts:
            match act:
                case Open(source=source):
                    self._leave()
                    self._line = self._fetcher.line(self._sources[source])
                case AskOutline():
                    self._ask(wire.OutlineAsked(digest=self._digest, place=self._place))
                case Ask(index=index):
                    self._ask(wire.ChunkAsked(digest=self._digest, index=index, place=self._place))
                case Done() | GaveUp():
                    self._ended = act

    def _ask(self, question: wire.Question) -> None:
        assert self._line is not None
        self._line.ask(question)

    def _leave(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)
