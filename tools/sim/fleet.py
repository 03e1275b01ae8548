"""The fake host, and which class plays which role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from schemas import messages as wire
from schemas.codec import Frame
from schemas.edges import Role
from tools.sim.clients import FakeClient
from tools.sim.playing import FakeEnv, FakeRollout
from tools.sim.scoring import FakeReference, FakeReward
from tools.sim.training import FakeTrainer, FakeWeightSync

STAGE_KINDS: dict[str, type[FakeClient]] = {
    kind.role.value: kind for kind in (FakeEnv, FakeRollout, FakeReward, FakeReference, FakeTrainer, FakeWeightSync)
}


class FakeHost(FakeClient):
    """Starts what the broker orders, restarts what dies, reports exits."""

    role: ClassVar[Role] = Role.HOST

    def start(self) -> None:
        self._children: dict[str, wire.StartProcess] = {}
        self._alive: set[str] = set()
        self._restarts: dict[str, int] = {}
        self._closing = False

    def ready(self, hello: wire.Hello) -> wire.Hello:
        slots = tuple(f"cpu:{index}" for index in range(self.world.scenario.slots))
        return replace(hello, slots=slots, running=dict.fromkeys(sorted(self._alive), 1))

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, wire.StartProcess) and message.name not in self._children and not self._closing:
            self._children[message.name] = message
            self._spawn(message.name)
        elif isinstance(message, wire.StopProcess) and not message.name and not self._closing:
            self._closing = True
            self._leave_if_alone()
            self.after(message.grace_s, self._end_all)

    def _spawn(self, name: str) -> None:
        child = self._children[name]
        self._alive.add(name)
        self.world.spawn(name, child.role.value, self.name, child.slots)

    def child_exited(self, name: str, code: int) -> None:
        """One of its processes is gone."""
        self._alive.discard(name)
        if self._closing or code == 0:
            self._leave_if_alone()
            return
        host = self.config["host"]
        restarts = self._restarts.get(name, 0)
        final = restarts >= host["restart_limit"]
        self.send(wire.ProcessExited(name=name, code=code, final=final, restarts=restarts))
        if not final:
            self._restarts[name] = restarts + 1
            self.after(min(host["backoff_max_s"], host["backoff_s"] * 2.0**restarts), lambda: self._spawn(name))

    def _leave_if_alone(self) -> None:
        if self._closing and not self._alive and self.alive:
            self.leave()

    def _end_all(self) -> None:
        for name in sorted(self._alive):
            self.world.kill_now(name)
        self._alive.clear()
        self._leave_if_alone()

    def kill(self) -> None:
        """Its processes end with it."""
        super().kill()
        for name in sorted(self._alive) if self.started else ():
            self.world.kill_now(name)
