"""A local network for tests: hosts on one switch, whose lines can be slow, lossy, cut in one direction or both, and healed.

    with a_lan(tmp_path, seed=7) as lan:
        head, worker = lan.host("head"), lan.host("worker")
        lan.law("worker", Law(delay_s=0.02, jitter_s=0.005, loss=0.01))
        head.start("broker", "tidemill", "broker", ...)
        lan.cut("worker")

Owns hosts and switch; nothing of them outlives the block. Addresses are 10.77.0.1, 10.77.0.2 ... in the order of the hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.hosts.laws import Law
from tests.hosts.machine import DIE_WITH_US, HOUSE, Machine, unshared

PERFECT = Law()


def why_not() -> str:
    """Why this machine cannot have hosts; empty where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        subprocess.run(("ip", "-V"), check=True, capture_output=True)
        os.close(os.open("/dev/net/tun", os.O_RDWR))
        subprocess.run(unshared("true"), check=True, capture_output=True)
    except FileNotFoundError as error:
        return f"hosts need iproute2, util-linux and /dev/net/tun; {error.filename} is missing"
    except (OSError, subprocess.CalledProcessError) as error:
        return f"namespaces or TAP devices cannot be made here: {error} {getattr(error, 'stderr', b'')!r}"
    return ""


class Lan:
    """See the module."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self.hosts: dict[str, Machine] = {}
        self._laws: dict[str, tuple[Law, Law]] = {}
        command = (*DIE_WITH_US, "unshare", "--net", sys.executable, "-m", "tests.hosts.switch", str(seed))
        self._switch = subprocess.Popen(command, cwd=HOUSE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def host(self, name: str, *, hidden: Sequence[str] = (), monotonic_s: int | None = None) -> Machine:
        """A new host, plugged in. `hidden` folders of the house are empty there; its clock since boot differs from all others'."""
        number = len(self.hosts) + 1
        ahead_s = 10_000 * number if monotonic_s is None else monotonic_s
        folders = [str(HOUSE / folder) for folder in hidden]
        machine = Machine(name, f"10.77.0.{number}", self._folder / "hosts" / name, folders, ahead_s)
        self.hosts[name] = machine
        self._order(do="plug", name=name, pid=machine.pid, number=number, address=f"{machine.address}/24")
        self._laws[name] = (PERFECT, PERFECT)
        return machine

    def law(self, name: str, outward: Law, inward: Law | None = None) -> None:
        """What the host's line does to what it sends and to what it hears; without `inward` both the same."""
        self._laws[name] = (outward, outward if inward is None else inward)
        self._order(do="law", name=name, outward=asdict(self._laws[name][0]), inward=asdict(self._laws[name][1]))

    def cut(self, name: str, *, outward: bool = True, inward: bool = True) -> None:
        """Nothing passes any more, in the directions named; nobody is told, as with any switch."""
        one, other = self._laws[name]
        self.law(name, replace(one, cut=outward), replace(other, cut=inward))

    def heal(self, name: str) -> None:
        self.cut(name, outward=False, inward=False)

    def kill(self, name: str) -> None:
        """The host dies for good: its line first, so that not even a closed connection is heard of, then all its processes."""
        self.cut(name)
        self._order(do="unplug", name=name)
        self.hosts[name].die()

    def counts(self, name: str) -> dict[str, int]:
        """Of a host's line so far: `inward_passed_bytes`, `inward_lost` (frames), and the same for `outward`."""
        counts: dict[str, dict[str, int]] = self._order(do="counts")
        return counts[name]

    def _order(self, **order: Any) -> Any:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.write(json.dumps(order).encode() + b"\n")
        self._switch.stdin.flush()
        answer = json.loads(self._switch.stdout.readline() or b'{"error": "the switch has ended"}')
        assert "error" not in answer, f"switch: {answer['error']}"
        return answer["answer"]

    def close(self) -> None:
        for machine in self.hosts.values():
            machine.die()
        self._switch.kill()
        self._switch.wait()
        for stream in (self._switch.stdin, self._switch.stdout):
            if stream is not None:
                stream.close()

    def story(self) -> str:
        return "\n".join(machine.story() for machine in self.hosts.values())


@contextmanager
def a_lan(folder: Path, seed: int) -> Iterator[Lan]:
    """A switch without hosts; whatever happens, all that is added is gone at the end."""
    lan = Lan(folder, seed)
    try:
        yield lan
    finally:
        lan.close()
