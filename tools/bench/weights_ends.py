"""The two ends of a copy of weights, each a process: `python -m tools.bench.weights_ends send KIND ...` and `... receive ...`.

    tcp       a bare socket, the kernel's sendfile; the receiver reads and forgets
    disk      the same, and the receiver writes a file and syncs it: what any transfer of weights has to do
    zeromq    frames of 1 MiB without a copy; the receiver takes and forgets; with keys: CURVE
    channel   the blob channel; with keys: CURVE

A sender prints its endpoint as its first line and serves until it is ended. A receiver prints seconds and bytes.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from broker.handshake import arm
from broker.keys import KeyDirectory, client_keys
from schemas.edges import Role
from schemas.messages import Source
from stages.blobs.cache import Cache
from stages.blobs.fetcher import Fetcher
from stages.blobs.outline import CHUNK_BYTES
from stages.blobs.server import BlobServer
from stages.blobs.shelf import Shelf

UNSENT = 16
"""Frames that wait in a socket: as many as the channel lets wait."""
KEY = "bench"


def send(kind: str, file: Path, keys: Path | None) -> None:
    """Serves until killed."""
    directory = KeyDirectory(keys) if keys is not None else None
    if kind == "channel":
        server = BlobServer("tcp://127.0.0.1:*", Shelf(None, [file.parent]), directory)
        print(server.endpoint, flush=True)
        threading.Event().wait()
    elif kind == "zeromq":
        _send_frames(file, directory)
    else:
        _send_file(file)


def _send_file(file: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"tcp://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection, file.open("rb") as data:
            connection.sendfile(data)


def _send_frames(file: Path, keys: KeyDirectory | None) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, UNSENT)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if keys is not None:
        router.curve_server, router.curve_secretkey = True, keys.server().secret.encode()
    router.bind("tcp://127.0.0.1:*")
    print(router.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        identity, _ = router.recv_multipart()
        with file.open("rb", buffering=0) as data:
            while frame := data.read(CHUNK_BYTES):
                router.send(identity, zmq.SNDMORE)
                router.send(frame, copy=False)


Receive = Callable[[str, "Wanted"], int]


class Wanted:
    """What to receive, and where to."""

    def __init__(self, digest: str, size: int, place: Path, scratch: Path) -> None:
        self.digest, self.size, self.place, self.scratch = digest, size, place, scratch


def receive_tcp(endpoint: str, wanted: Wanted) -> int:
    """Bytes read and forgotten."""
    return _read(endpoint, lambda data: None)


def receive_to_disk(endpoint: str, wanted: Wanted) -> int:
    """Bytes read, written and synced."""
    with (wanted.scratch / f"copy-{time.monotonic_ns()}").open("wb", buffering=0) as file:
        done = _read(endpoint, file.write)
        os.fsync(file.fileno())
    Path(file.name).unlink()
    return done


def _read(endpoint: str, take: Callable[[memoryview], object]) -> int:
    buffer, done = memoryview(bytearray(CHUNK_BYTES)), 0
    with socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2]))) as connection:
        while count := connection.recv_into(buffer):
            take(buffer[:count])
            done += count
    return done


def receive_frames(endpoint: str, wanted: Wanted) -> int:
    """Bytes of frames taken and forgotten."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVHWM, UNSENT)
    arm(dealer, endpoint, client_keys())
    dealer.connect(endpoint)
    dealer.send(b"")
    done = 0
    while done < wanted.size:
        done += len(dealer.recv(copy=False))
    context.destroy(linger=0)
    return done


def receive_blob(endpoint: str, wanted: Wanted) -> int:
    """Bytes that arrived in a cache, checked and synced."""
    keys = client_keys()
    fetcher = Fetcher(Cache(wanted.scratch, 1 << 50), keys)
    source = Source(endpoint, keys.server if keys is not None else "")
    fetcher.blob(wanted.digest, wanted.size, str(wanted.place), [source])
    fetcher.close()
    return fetcher.fetched_bytes


RECEIVERS: dict[str, Receive] = {"tcp": receive_tcp, "disk": receive_to_disk, "zeromq": receive_frames, "channel": receive_blob}


def keys_for(directory: Path) -> dict[str, str]:
    """New keys, and the environment of a client that has one of them."""
    keys = KeyDirectory(directory)
    if not keys.exists:
        keys.new(KEY, tuple(Role))
    return {"TIDEMILL_KEY": str(keys.client_file(KEY)), "TIDEMILL_SERVER_KEY": keys.server().public}


def main() -> None:
    """See the module."""
    if sys.argv[1] == "send":
        _, _, kind, file, *keys = sys.argv
        send(kind, Path(file), Path(keys[0]) if keys else None)
        return
    _, _, kind, endpoint, digest, size, place, scratch = sys.argv
    wanted = Wanted(digest, int(size), Path(place), Path(scratch))
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    done = RECEIVERS[kind](endpoint, wanted)
    print(time.monotonic() - began, done, flush=True)


if __name__ == "__main__":
    main()
