"""A switch in user space: a process in a network namespace of its own, with one TAP device a host and a law for each direction.

It stands in for `tc netem`, which not every kernel has. Reads orders as lines of JSON on stdin, answers each on stdout, ends with
stdin; its devices end with it, so nothing has to be cleaned up. Orders: `plug`, `unplug`, `law`, `counts`.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.hosts.laws import Direction, Law

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # <linux/if_tun.h>
FRAME_BYTES_MAX = 65_535
FRAMES_A_TURN = 64
"""Read from one port before the others have their turn."""
DEVICE = "eth0"


@dataclass
class Port:
    """A host's line: `outward` carries what the host sends, `inward` what it hears."""

    descriptor: int
    address: bytes
    outward: Direction
    inward: Direction


def mac_of(number: int) -> bytes:
    """The hardware address of host `number`."""
    return bytes((0x02, 0, 0, 0, 0x77, number))


def make_device(pid: int, number: int, address: str) -> int:
    """A TAP device inside the namespace of process `pid`, up and with `address`; the descriptor of its other side."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    name = f"tap{number}"
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    inside = ("nsenter", "-t", str(pid), "-n", "ip")
    for command in (
        ("ip", "link", "set", name, "address", mac_of(number).hex(":")),
        ("ip", "link", "set", name, "netns", str(pid), "name", DEVICE),
        (*inside, "link", "set", DEVICE, "addrgenmode", "none"),  # no IPv6 chatter
        (*inside, "addr", "add", address, "dev", DEVICE),
        (*inside, "link", "set", DEVICE, "up"),
    ):
        subprocess.run(command, check=True, capture_output=True)
    return descriptor


class Switch:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._ports: dict[str, Port] = {}
        self._due: list[tuple[float, int, str, bytes]] = []
        self._order = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._orders: dict[str, Callable[..., object]] = {"plug": self.plug, "unplug": self.unplug, "law": self.law, "counts": self.counts}

    def plug(self, name: str, pid: int, number: int, address: str) -> None:
        # Each direction draws its own chance: what happens on one line changes nothing on another.
        outward, inward = (Direction(Random(f"{self._seed} {name} {way}")) for way in ("outward", "inward"))
        self._ports[name] = Port(make_device(pid, number, address), mac_of(number), outward, inward)
        self._selector.register(self._ports[name].descriptor, selectors.EVENT_READ, name)

    def unplug(self, name: str) -> None:
        port = self._ports.pop(name)
        self._selector.unregister(port.descriptor)
        os.close(port.descriptor)

    def law(self, name: str, outward: dict[str, Any], inward: dict[str, Any]) -> None:
        self._ports[name].outward.law, self._ports[name].inward.law = Law(**outward), Law(**inward)

    def counts(self) -> dict[str, dict[str, int]]:
        ways = {name: {"outward": port.outward, "inward": port.inward} for name, port in self._ports.items()}
        return {
            name: {f"{way}_{what}": getattr(direction, what) for way, direction in both.items() for what in ("passed_bytes", "lost")}
            for name, both in ways.items()
        }

    def run(self) -> None:
        """Until stdin ends."""
        self._selector.register(sys.stdin.buffer, selectors.EVENT_READ, None)
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for key, _ in self._selector.select(wait):
                if key.data is not None:
                    self._read(key.data)
                elif not self._obey():
                    return
            self._deliver()

    def _obey(self) -> bool:
        line = sys.stdin.buffer.readline()
        if not line:
            return False
        order = json.loads(line)
        try:
            answer = {"answer": self._orders[order.pop("do")](**order)}
        except (OSError, subprocess.CalledProcessError) as error:
            answer = {"error": f"{error} {getattr(error, 'stderr', b'')!r}"}
        print(json.dumps(answer), flush=True)
        return True

    def _read(self, name: str) -> None:
        port = self._ports.get(name)
        if port is None:  # unplugged in this very turn
            return
        for _ in range(FRAMES_A_TURN):
            try:
                frame = os.read(port.descriptor, FRAME_BYTES_MAX)
            except OSError:  # nothing more, or the host and its device are gone
                return
            now = time.monotonic()
            left = port.outward.due(len(frame), now)
            if left is not None:
                self._forward(name, frame, left)

    def _forward(self, sender: str, frame: bytes, left: float) -> None:
        everybody = bool(frame[0] & 1)
        for name, port in self._ports.items():
            if name != sender and (everybody or frame[:6] == port.address):
                arrives = port.inward.due(len(frame), left)
                if arrives is not None:
                    heapq.heappush(self._due, (arrives, next(self._order), name, frame))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, name, frame = heapq.heappop(self._due)
            port = self._ports.get(name)
            if port is None:
                continue
            try:
                os.write(port.descriptor, frame)
            except OSError:  # the host is gone, or reads so slowly that its device is full
                port.inward.lost += 1


if __name__ == "__main__":
    Switch(int(sys.argv[1])).run()
