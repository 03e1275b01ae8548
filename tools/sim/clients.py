"""A fake stage's side of the protocol: what `broker/client.py` and `stages/service/loop.py` do, without a socket.

Numbered messages are kept until answered and sent again from where the broker asks; after a cut the client says hello again with the leases
it holds, those included whose acknowledgement is still unanswered. One object is one incarnation of one process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec import Struct
from msgspec.structs import replace

from schemas import messages as wire
from schemas.codec import Frame, encode_record, make_header
from schemas.edges import Role
from schemas.errors import TidemillError
from schemas.header import Header
from schemas.lock import schema_fingerprint
from schemas.records import Record

if TYPE_CHECKING:
    from tools.sim.world import World

HELLO_RETRY_S = 30.0
DRAIN_LOOK_S = 0.05
DRAIN_S = 2.0
ORDINARY_REFUSALS = frozenset({"stale_lease", "late", "no_ticket"})


class SimulationError(TidemillError):
    """A fake stage and the broker do not understand each other: a bug in one of them."""


class Put(Struct, frozen=True):
    """A record on its way to a queue; `fields` are header fields."""

    queue: str
    record: Record
    fields: dict[str, Any]


class Delivery(Struct, frozen=True, kw_only=True):
    """A leased record."""

    lease: int
    header: Header
    frames: tuple[Frame, ...]
    held_tokens: int
    context: tuple[Frame, ...]


class FakeClient:
    """Base of all fake stages."""

    role: ClassVar[Role]

    def __init__(self, world: World, name: str, incarnation: str, rng: Random, host: str = "", slots: tuple[str, ...] = ()) -> None:
        self.world, self.name, self.incarnation, self.rng = world, name, incarnation, rng
        self.host, self.slots = host, slots
        self.alive = True
        self.booted = False
        self.connected = False
        self.line = 0
        """Rises with each cut: what was on its way on an earlier line is lost."""
        self.started = False
        self.welcomed = False
        self.draining_until: float | None = None
        self.leases: set[int] = set()
        self.config: dict[str, Any] = {}
        self._outbox: OrderedDict[int, tuple[wire.ClientMessage, tuple[Frame, ...]]] = OrderedDict()
        self._next_seq = 1
        self._epoch = 0
        self._hellos = 0

    @property
    def identity(self) -> str:
        """Its routing id."""
        return f"{self.name}/{self.incarnation}"

    # --- what a stage fills in ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Once, when the config is known."""

    def ready(self, hello: wire.Hello) -> wire.Hello:
        """Fills in the ready hello."""
        return hello

    def deliver(self, delivery: Delivery) -> None:
        """A leased record."""

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        """Anything else."""

    def drained(self) -> bool:
        """Nothing is held any more."""
        return True

    # --- life ---------------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls back in `seconds`, unless the process is gone by then."""
        self.world.at(self.world.now + seconds, lambda: call() if self.alive else None)

    def boot(self) -> None:
        """The process was started."""
        self.after(self.world.laws.boot_s(self.rng), self._booted)

    def _booted(self) -> None:
        self.booted = True
        self.world.connect(self)

    def line_up(self) -> None:
        """Someone listens: each connection begins with a hello."""
        self.connected = True
        self.say_hello()

    def line_cut(self) -> None:
        """What was on its way is lost, in both directions; nothing is sent until someone listens."""
        self.line += 1
        self.connected = self.welcomed = False

    def kill(self) -> None:
        """The process is gone without a word."""
        self.alive = False

    def leave(self) -> None:
        """The process ends by itself."""
        self.post(wire.Bye(reason="run_end"))
        self.alive = False
        self.world.exited(self, 0)

    # --- outward ------------------------------------------------------------------------------------------------------------

    def say_hello(self) -> None:
        """Introduces the process, again until it is heard."""
        self.welcomed = False
        if not self.connected:
            return
        self._hellos += 1
        number = self._hellos
        self.after(HELLO_RETRY_S, lambda: self.say_hello() if not self.welcomed and number == self._hellos else None)
        hello = wire.Hello(
            protocol=wire.PROTOCOL_VERSION, schema=schema_fingerprint(), role=self.role, name=self.name, incarnation=self.incarnation,
            pipeline="", next_seq=next(iter(self._outbox), self._next_seq), host=self.host,
        )  # fmt: skip
        self.post(self.ready(replace(hello, ready=True, holds=self._holds())) if self.started else hello)

    def _holds(self) -> tuple[int, ...]:
        unanswered = {lease for message, _ in self._outbox.values() for lease in leases_of(message)}
        return tuple(sorted(self.leases | unanswered))

    def send(self, message: wire.Numbered, frames: Sequence[Frame] = ()) -> None:
        """A numbered message: kept until answered."""
        numbered = cast(wire.ClientMessage, replace(message, epoch=self._epoch, seq=self._next_seq))
        self._outbox[self._next_seq] = (numbered, tuple(frames))
        self._next_seq += 1
        if self.welcomed:
            self.post(numbered, frames)

    def commit(self, *, acks: Sequence[int] = (), puts: Sequence[Put] = (), fails: Sequence[wire.Failure] = ()) -> None:
        """One unit of work."""
        headers, frames = [], []
        for put in puts:
            parts = encode_record(put.record)
            headers.append(make_header(put.record, parts, pipeline=self.config["pipeline"]["name"], queue=put.queue, **put.fields))
            frames += parts
        self.leases.difference_update(acks, (failure.lease for failure in fails))
        self.send(wire.Commit(acks=tuple(acks), puts=tuple(headers), fails=tuple(fails)), frames)

    def post(self, message: wire.ClientMessage, frames: Sequence[Frame] = ()) -> None:
        """On the wire, once; nowhere while nobody listens."""
        if self.connected:
            self.world.to_broker(self, message, frames)

    def _heartbeat(self) -> None:
        if self.welcomed:
            self.post(wire.Heartbeat())
        self.after(self.config["broker"]["heartbeat_s"], self._heartbeat)

    # --- inward -------------------------------------------------------------------------------------------------------------

    def receive(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        """A message of the broker."""
        match message:
            case wire.Committed():
                self._let_go(message.seq)
            case wire.ResendFrom():
                self._resend(message.seq)
            case wire.Refuse():
                self._refused(message)
            case wire.Welcome():
                self._on_welcome(message)
            case wire.Deliver():
                self._deliver(message, tuple(frames))
            case wire.Drain():
                self._drain(DRAIN_S)
            case _:
                if isinstance(message, wire.Abort):
                    self.leases.discard(message.lease)
                self.order(message, frames)

    def _deliver(self, order: wire.Deliver, frames: tuple[Frame, ...]) -> None:
        self.leases.add(order.lease)
        self.deliver(Delivery(lease=order.lease, header=order.header, frames=frames[order.context :], held_tokens=order.held_tokens,
                              context=frames[: order.context]))  # fmt: skip

    def _let_go(self, seq: int) -> None:
        while self._outbox and next(iter(self._outbox)) <= seq:
            self._outbox.popitem(last=False)

    def _resend(self, seq: int) -> None:
        for number, (message, frames) in self._outbox.items():
            if number >= seq:
                self.post(message, frames)

    def _refused(self, refusal: wire.Refuse) -> None:
        self.world.refusals[refusal.reason] += 1
        if refusal.reason == "hello_first":
            if self.welcomed or not self._hellos:
                self.say_hello()
            return
        if refusal.seq is not None:
            self._outbox.pop(refusal.seq, None)
        if refusal.reason == "fenced":
            self.alive = False
            self.world.exited(self, 2)
        elif refusal.fatal or refusal.reason not in ORDINARY_REFUSALS:
            raise SimulationError(f"{self.name} at {self.world.now:.3f} s: refused ({refusal.reason}): {refusal.detail}")

    def _on_welcome(self, welcome: wire.Welcome) -> None:
        self._epoch, self.welcomed = welcome.epoch, True
        self._let_go(welcome.next_seq - 1)
        self._resend(welcome.next_seq)
        for lease in welcome.stale:
            self.leases.discard(lease)
            self.order(wire.Abort(lease=lease), ())
        if not self.config:
            self.config = welcome.config
            self.after(self.world.laws.load_s(self.rng), self._loaded)

    def _loaded(self) -> None:
        self.start()
        self.started = True
        self._heartbeat()
        self.say_hello()

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _drain(self, seconds: float) -> None:
        if self.draining_until is None:
            self.draining_until = self.world.now + seconds
            self._leave_if_drained()

    def _leave_if_drained(self) -> None:
        assert self.draining_until is not None
        if not self.started or self.drained() or self.world.now >= self.draining_until:
            self.send(wire.Drained())
            self.leave()
        else:
            self.after(DRAIN_LOOK_S, self._leave_if_drained)


def leases_of(message: wire.ClientMessage) -> tuple[int, ...]:
    """Leases that a message ends."""
    if isinstance(message, wire.Commit):
        return (*message.acks, *(failure.lease for failure in message.fails))
    return ()
