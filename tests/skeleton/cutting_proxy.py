"""A line that can be cut: a TCP proxy between clients and a broker. What is on its way when it is cut is lost, as on a real network."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CuttingProxy:
    """Forwards each connection to `port` of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._cut_wanted = threading.Event()
        self._closing = threading.Event()
        self.cuts = 0
        """Connections cut so far."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Cuts every connection there is; new ones are taken at once."""
        self._cut_wanted.set()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.005):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._pairs:
                    self._forward(key.fileobj)  # type: ignore[arg-type]
            if self._cut_wanted.is_set():
                self._cut_wanted.clear()
                self._drop_all()
        self._drop_all()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._port))
        for one, other in ((near, far), (far, near)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        try:
            data = source.recv(65_536)
            self._pairs[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs[one]
        for each in (one, other):
            if self._pairs.pop(each, None) is not None:
                self._selector.unregister(each)
                with contextlib.suppress(OSError):
                    each.close()

    def _drop_all(self) -> None:
        for one in list(self._pairs):
            if one in self._pairs:
                self._drop(one)
                self.cuts += 1


@contextmanager
def a_cutting_proxy(endpoint: str) -> Iterator[CuttingProxy]:
    """A line to the broker at `endpoint` (tcp)."""
    proxy = CuttingProxy(int(endpoint.rpartition(":")[2]))
    try:
        yield proxy
    finally:
        proxy.close()
