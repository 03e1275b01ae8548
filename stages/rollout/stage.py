"""The rollout stage: answers turns with one engine, and keeps its weights where the broker wants them.

    turns    ─► [held + context + tokens] ─► engine ─► actions       one commit a turn: acks the turn, puts the action
    installs ─► here? else fetched by a thread ─► read, check, install between two decode steps ─► Receipt | InstallFailed

| waits for | unblocked by |
|---|---|
| weights: no window is open before the first receipt | an `InstallOrder` |
| turns | env's next turn, by placement |

Owns: the tokens of its open sessions, its turns' leases. Promises: a turn is played only on the context that env digested; a
version is in use only if its tensors hash to what the trainer said. Imports no torch: the engine's factory does. Does not
know texts, environments or rewards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
import numpy as np
import structlog
import xxhash
from msgspec.structs import replace

from schemas.codec import Frame, decode_record
from schemas.config import PipelineConfig
from schemas.edges import Role
from schemas.errors import BlobError, EngineError, ModelError, WireError
from schemas.header import Header
from schemas.messages import (
    Abort,
    BrokerMessage,
    CloseSession,
    Credit,
    Failure,
    InstallFailed,
    InstallOrder,
    Receipt,
    Welcome,
)
from schemas.records import Array, Install, Turn, no_tokens
from stages.blobs.arrivals import nobody_serves, own_depot
from stages.rollout.answers import ContextMismatchError, action_fields, action_of, context_of, session_of
from stages.rollout.engine import SessionKey, TurnRefusedError, TurnRequest, TurnResult
from stages.rollout.incoming import Arrived, Incoming, Ordered, is_here
from stages.rollout.weights import Replica, install
from stages.service.stage import Delivery, Link, Put, Ready

log = structlog.get_logger("rollout")

EngineFactory = Callable[[PipelineConfig], Replica]


@dataclass
class Playing:
    """A turn in the engine: its lease's header, and the session's tokens up to the answer."""

    header: Header
    prompt: Array


@dataclass
class Counts:
    """What the process has done since its start."""

    turns: int = 0
    tokens: int = 0
    failures: int = 0
    installs: int = 0
    install_seconds: float = 0.0


def configured_engine(config: PipelineConfig) -> Replica:
    """The engine that `stages.rollout.engine` names; torch is imported here and nowhere above."""
    from stages.rollout.torch_replica import torch_replica

    return torch_replica(config)


@dataclass
class Rollout:
    """See the module. `engine_factory` is given another engine in tests; `clock` gives monotonic seconds."""

    engine_factory: EngineFactory = configured_engine
    clock: Callable[[], float] = time.monotonic
    role: Role = field(default=Role.ROLLOUT, init=False)

    def __post_init__(self) -> None:
        self._sessions: dict[SessionKey, Array] = {}
        self._playing: dict[int, Playing] = {}
        self._orders: list[Ordered] = []
        self._installed: Install | None = None
        self._counts = Counts()
        self._opened = ExitStack()
        """What `close` has to end: whatever `start` got to."""

    def start(self, welcome: Welcome, link: Link) -> None:
        """Builds the engine; its starting weights answer nothing until a version is installed."""
        self._link = link
        config = PipelineConfig.model_validate(welcome.config)
        self._window = config.stages.rollout.max_running
        self._incoming = Incoming(lambda: own_depot(config.host.cache_bytes))
        self._opened.callback(self._incoming.close)
        self._replica = self.engine_factory(config)

    def hello(self) -> Ready:
        """No window before the first receipt: a replica that starts late has the current version before its first turn."""
        sessions = tuple(self._sessions)
        if self._installed is None:
            return Ready(sessions=sessions)
        return Ready(windows={"turns": self._window}, installed=self._installed.number, sessions=sessions)

    def deliver(self, delivery: Delivery) -> None:
        try:
            self._submit(delivery)
        except (ContextMismatchError, TurnRefusedError, WireError) as error:
            self._forget(session_of(delivery.header))
            self._counts.failures += 1
            log.warning("turn_failed", ticket=delivery.header.ticket, attempt=delivery.header.attempt, reason=str(error))
            failure = Failure(lease=delivery.lease, boundary="rollout", reason=str(error))
            self._link.commit(fails=[failure])

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, Abort):
            if self._playing.pop(message.lease, None) is not None:
                self._replica.engine.abort(message.lease)
        elif isinstance(message, CloseSession):
            self._forget((message.ticket, message.attempt))
        elif isinstance(message, InstallOrder):
            self._keep_order(message, frames)

    def work(self) -> bool:
        """One install or one decode step; while a version comes over the network, decode steps."""
        arrived = self._incoming.taken()
        if arrived is not None:
            self._install(arrived)
        elif self._orders and not self._incoming.busy:
            self._begin_install(self._orders.pop(0))
        elif self._replica.engine.has_work():
            for result in self._replica.engine.step():
                self._answer(result)
        return (bool(self._orders) and not self._incoming.busy) or self._replica.engine.has_work()

    def stats(self) -> dict[str, float]:
        counts = self._counts
        engine = {name: float(value) for name, value in msgspec.structs.asdict(self._replica.engine.stats()).items()}
        return engine | {
            "turns_total": counts.turns,
            "tokens_total": counts.tokens,
            "failures_total": counts.failures,
            "installs_total": counts.installs,
            "install_seconds_total": counts.install_seconds,
            "fetched_bytes_total": float(self._incoming.fetched_bytes),
        }

    def waiting(self) -> str:
        if self._installed is None:
            return "on another host for the files of the first version" if self._incoming.busy else "on weight-sync for the first version"
        return "" if self._playing else "on env for turns"

    def drained(self) -> bool:
        return not self._playing

    def close(self) -> None:
        self._playing.clear()
        self._sessions.clear()
        self._opened.close()

    def wake_fd(self) -> int | None:
        return self._incoming.wake_fd()

    def _submit(self, delivery: Delivery) -> None:
        turn, key, engine = delivery.record(Turn), session_of(delivery.header), self._replica.engine
        self._abort_turn_of(key)
        context = context_of(self._sessions.get(key, no_tokens()), delivery)
        if xxhash.xxh3_64_intdigest(context.tobytes()) != turn.context_digest:
            raise ContextMismatchError(
                f"context mismatch: {context.size} tokens of session {key} do not hash to what env says came before turn"
                f" {delivery.header.turn}"
            )
        prompt = np.concatenate([context, turn.tokens])
        held = min(delivery.held_tokens, engine.held(key))
        engine.submit(
            TurnRequest(
                turn_id=delivery.lease,
                session=key,
                appended=prompt[held:],
                held=held,
                seed=turn.seed,
                temperature=turn.sampling.temperature,
                top_p=turn.sampling.top_p,
                top_k=turn.sampling.top_k,
                max_new_tokens=turn.sampling.max_new_tokens,
                stop_tokens=turn.sampling.stop_tokens,
                priority=float(delivery.header.priority or 0),
            )
        )
        self._sessions[key] = context
        self._playing[delivery.lease] = Playing(delivery.header, prompt)

    def _abort_turn_of(self, key: SessionKey) -> None:
        """A session has one turn at a time: one that is delivered anew takes the place of the old lease's."""
        for lease in [lease for lease, playing in self._playing.items() if session_of(playing.header) == key]:
            del self._playing[lease]
            self._replica.engine.abort(lease)

    def _forget(self, key: SessionKey) -> None:
        self._abort_turn_of(key)
        self._sessions.pop(key, None)
        self._replica.engine.close_session(key)

    def _answer(self, result: TurnResult) -> None:
        playing = self._playing.pop(result.turn_id, None)
        if playing is None:
            return
        self._sessions[result.session] = np.concatenate([playing.prompt, result.tokens])
        for tie in result.near_ties:
            log.info("near_tie", ticket=result.session[0], attempt=result.session[1], **msgspec.structs.asdict(tie))
        count = int(result.tokens.size)
        put = Put(queue="actions", record=action_of(result), fields=action_fields(playing.header, result))
        self._link.commit(acks=[result.turn_id], puts=[put])
        self._counts.turns += 1
        self._counts.tokens += count

    def _keep_order(self, message: InstallOrder, frames: Sequence[Frame]) -> None:
        try:
            self._orders.append(Ordered(decode_record(Install, frames), message.sources))
        except WireError as error:
            self._link.send(InstallFailed(number=message.header.newest_version or 0, reason=str(error)))

    def _begin_install(self, ordered: Ordered) -> None:
        """At once where its directory is here; where that is not what was ordered, and somebody serves it, it is fetched too."""
        order = ordered.install
        if not is_here(order):
            self._fetch(ordered)
            return
        try:
            self._take_into_use(order, self.clock(), {})
        except (EngineError, ModelError) as error:
            if not ordered.sources:
                self._fail(order, error)
                return
            log.warning("fetched_instead", version=order.number, location=order.location, reason=str(error))
            self._fetch(ordered)

    def _fetch(self, ordered: Ordered) -> None:
        if ordered.sources:
            self._incoming.fetch(ordered)
        else:
            self._fail(ordered.install, nobody_serves(ordered.install.location))

    def _install(self, arrived: Arrived) -> None:
        """What came over the network, or why it did not."""
        try:
            if isinstance(arrived.came, BlobError):
                raise arrived.came
            started = self.clock() - arrived.came.seconds
            self._take_into_use(replace(arrived.order, location=str(arrived.came.path)), started, arrived.came.metrics)
            self._incoming.keep(arrived.came)
        except (EngineError, ModelError, BlobError) as error:
            if not isinstance(arrived.came, BlobError):
                arrived.came.release()
            self._fail(arrived.order, error)

    def _take_into_use(self, order: Install, started: float, metrics: dict[str, float]) -> None:
        digest = install(self._replica, order)
        seconds, first = self.clock() - started, self._installed is None
        self._installed = order
        self._counts.installs += 1
        self._counts.install_seconds += seconds
        self._link.send(Receipt(lineage=order.lineage, number=order.number, digest=digest, seconds=seconds, metrics=metrics))
        if first:
            self._link.send(Credit(queue="turns", window=self._window))

    def _fail(self, order: Install, error: Exception) -> None:
        log.error("install_failed", version=order.number, reason=str(error))
        self._link.send(InstallFailed(number=order.number, reason=str(error)))
