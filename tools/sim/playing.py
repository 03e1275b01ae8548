"""Env and rollout as laws: sessions whose length, words and waits are drawn, and a replica that decodes in batches.

Records are real and checked as live ones are: a turn is played only on the context that the env digested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

import numpy as np
import xxhash
from msgspec.structs import replace

from schemas import messages as wire
from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.header import Header
from schemas.records import Action, Array, Episode, Install, Sampling, Ticket, Turn, TurnBounds, VersionSpan, no_tokens
from tools.sim.clients import Delivery, FakeClient, Put, SimulationError
from tools.sim.laws import count, random_of

Key = tuple[int, int]
SAMPLING = Sampling()
VOCABULARY = 50_000


def carried(header: Header) -> dict[str, Any]:
    """Header fields that say whose a record is."""
    return {name: getattr(header, name) for name in ("ticket", "group", "member", "attempt", "purpose")}


def versions(spans: Sequence[VersionSpan]) -> dict[str, int]:
    """Header fields of version spans."""
    numbers = [span.version for span in spans]
    return {"oldest_version": min(numbers), "newest_version": max(numbers)}


@dataclass
class Session:
    """One that is played."""

    lease: int
    header: Header
    task: int
    rng: Random
    turns_left: int
    tokens: list[Array] = field(default_factory=list)
    mask: list[Array] = field(default_factory=list)
    bounds: list[TurnBounds] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    kv: tuple[VersionSpan, ...] = ()
    turn: int = -1
    action_lease: int | None = None
    asked: bool = False

    @property
    def length(self) -> int:
        """Tokens so far."""
        return sum(part.size for part in self.tokens)

    def hear(self, words: Array, *, said: bool) -> None:
        """Appends the policy's or the environment's tokens."""
        self.tokens.append(words)
        self.mask.append(np.full(words.size, said, np.uint8))


class FakeEnv(FakeClient):
    """Plays tickets."""

    role: ClassVar[Role] = Role.ENV

    def start(self) -> None:
        self._sessions: dict[Key, Session] = {}
        self._longest = int(self.config["stages"]["env"]["max_episode_tokens"])

    def ready(self, hello: wire.Hello) -> wire.Hello:
        return replace(hello, windows={"tickets": self.config["stages"]["env"]["sessions"]})

    def drained(self) -> bool:
        return not self._sessions

    def deliver(self, delivery: Delivery) -> None:
        if delivery.header.queue == "actions":
            self._answer(delivery)
            return
        header = delivery.header
        key = (header.ticket or 0, header.attempt or 0)
        task = decode_record(Ticket, delivery.frames).task_index
        rng = random_of(self.world.seed, header.purpose or "", task, header.member or 0, header.attempt or 0)
        session = Session(delivery.lease, header, task, rng, count(self.world.laws.turns, rng))
        self._sessions[key] = session
        self.after(self.world.laws.reset_s(rng), lambda: self._ask(key, session))

    def _ask(self, key: Key, session: Session) -> None:
        if self._sessions.get(key) is not session:
            return
        if session.rng.random() < self.world.laws.env_failure:
            self._fail(key, session)
            return
        words = np.array([session.rng.randrange(VOCABULARY) for _ in range(count(self.world.laws.heard_tokens, session.rng))], np.int32)
        before = np.concatenate(session.tokens) if session.tokens else no_tokens()
        digest = xxhash.xxh3_64_intdigest(before.tobytes())
        turn = Turn(context_digest=digest, sampling=SAMPLING, seed=session.rng.randrange(2**31), tokens=words)
        session.turn, session.asked = session.turn + 1, True
        fields = {**carried(session.header), "turn": session.turn, "context_tokens": int(before.size), "new_tokens": int(words.size)}
        session.hear(words, said=False)
        self.commit(acks=self._answered(session), puts=[Put("turns", turn, fields)])

    def _answered(self, session: Session) -> list[int]:
        lease, session.action_lease = session.action_lease, None
        return [] if lease is None else [lease]

    def _answer(self, delivery: Delivery) -> None:
        key = (delivery.header.ticket or 0, delivery.header.attempt or 0)
        session = self._sessions.get(key)
        if session is None or delivery.header.turn != session.turn:
            return
        session.action_lease = delivery.lease
        if not session.asked:
            return
        session.asked = False
        action = decode_record(Action, delivery.frames)
        start = session.length
        session.bounds.append(TurnBounds(start - session.tokens[-1].size, start, start + action.tokens.size))
        session.hear(action.tokens, said=True)
        session.spans += action.sample_spans
        session.kv = action.kv_spans
        session.turns_left -= 1
        over = session.turns_left <= 0 or session.length >= self._longest
        then = self._finish if over else self._ask
        self.after(self.world.laws.tool_s(session.rng), lambda: then(key, session))

    def _finish(self, key: Key, session: Session) -> None:
        if self._sessions.pop(key, None) is not session:
            return
        tokens, mask = np.concatenate(session.tokens), np.concatenate(session.mask)
        difficulty = random_of(self.world.seed, session.header.purpose or "", session.task).uniform(0.5, 2.0)
        skill = self.world.laws.skill(max(span.version for span in session.spans))
        correct = session.rng.random() < skill**difficulty
        episode = Episode(
            task={}, outcome={"correct": correct}, turns=tuple(session.bounds), sample_spans=tuple(session.spans), kv_spans=session.kv,
            truncated=session.turns_left > 0, tokens=tokens, loss_mask=mask, logprobs=np.zeros(tokens.size, np.float32),
            kept_ids=no_tokens(), kept_counts=no_tokens(),
        )  # fmt: skip
        fields = {**carried(session.header), "new_tokens": int(tokens.size), "trainable_tokens": int(mask.sum()),
                  "truncated": episode.truncated, **versions(session.spans)}  # fmt: skip
        self.commit(acks=[*self._answered(session), session.lease], puts=[Put("episodes", episode, fields)])

    def _fail(self, key: Key, session: Session) -> None:
        del self._sessions[key]
        self.commit(fails=[wire.Failure(lease=session.lease, boundary="env", reason="drawn by chance")])

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, wire.Abort):
            for key in [key for key, session in self._sessions.items() if session.lease == message.lease]:
                del self._sessions[key]


@dataclass
class Decoding:
    """A turn in a replica's batch."""

    header: Header
    prompt: Array
    left: int
    said: list[int] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)


class FakeRollout(FakeClient):
    """One replica: turns join and leave its batch between decode steps, weights change there too."""

    role: ClassVar[Role] = Role.ROLLOUT

    def start(self) -> None:
        self._sessions: dict[Key, Array] = {}
        self._batch: dict[int, Decoding] = {}
        self._orders: list[Install] = []
        self._installed: Install | None = None
        self._stepping = False
        self._prefill = 0
        self._window = int(self.config["stages"]["rollout"]["max_running"])

    def ready(self, hello: wire.Hello) -> wire.Hello:
        sessions = tuple(sorted(self._sessions))
        if self._installed is None:
            return replace(hello, sessions=sessions)
        return replace(hello, sessions=sessions, windows={"turns": self._window}, installed=self._installed.number)

    def drained(self) -> bool:
        return not self._batch

    def deliver(self, delivery: Delivery) -> None:
        header = delivery.header
        key = (header.ticket or 0, header.attempt or 0)
        turn = decode_record(Turn, delivery.frames)
        for lease in [lease for lease, other in self._batch.items() if (other.header.ticket, other.header.attempt) == key]:
            del self._batch[lease]
        ours = self._sessions.get(key, no_tokens())
        sent = [np.frombuffer(frame, np.int32) for frame in delivery.context]
        context = np.concatenate([ours[: delivery.held_tokens], *sent]).astype(np.int32)
        if delivery.held_tokens > ours.size or xxhash.xxh3_64_intdigest(context.tobytes()) != turn.context_digest:
            raise SimulationError(f"{self.name} at {self.world.now:.3f} s: the context of {key}, turn {header.turn}, is not its env's")
        self.world.disk.context_checks += 1
        rng = random_of(turn.seed, "said")
        self._batch[delivery.lease] = Decoding(header, np.concatenate([context, turn.tokens]), count(self.world.laws.said_tokens, rng))
        self._prefill += int(turn.tokens.size) + sum(part.size for part in sent)
        self._wake()

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, wire.Abort):
            self._batch.pop(message.lease, None)
        elif isinstance(message, wire.CloseSession):
            self._forget((message.ticket, message.attempt))
        elif isinstance(message, wire.InstallOrder):
            self._orders.append(decode_record(Install, frames))
            self._wake()

    def _forget(self, key: Key) -> None:
        self._sessions.pop(key, None)
        for lease in [lease for lease, other in self._batch.items() if (other.header.ticket, other.header.attempt) == key]:
            del self._batch[lease]

    def _wake(self) -> None:
        if self._stepping or not (self._orders or self._batch):
            return
        self._stepping = True
        law = self.world.laws.engine
        if self._orders:
            self.after(law.install_s, self._install)
            return
        rounds = min(law.granularity, min(turn.left for turn in self._batch.values()))
        seconds = rounds * (law.step_s + law.turn_s * len(self._batch)) + law.prefill_s * self._prefill
        self._prefill = 0
        batch = dict(self._batch)
        self.after(seconds, lambda: self._decoded(batch, rounds))

    def _install(self) -> None:
        self._stepping = False
        install, first = self._orders.pop(0), self._installed is None
        self._installed = install
        self.send(wire.Receipt(lineage=install.lineage, number=install.number, digest=install.digest))
        if first:
            self.send(wire.Credit(queue="turns", window=self._window))
        self._wake()

    def _decoded(self, batch: dict[int, Decoding], rounds: int) -> None:
        self._stepping = False
        assert self._installed is not None
        for lease, turn in batch.items():
            if self._batch.get(lease) is not turn:
                continue
            start = turn.prompt.size + len(turn.said)
            turn.said += [(start + i) % VOCABULARY for i in range(rounds)]
            _extend(turn.spans, start, rounds, self._installed.number)
            turn.left -= rounds
            if turn.left == 0:
                self._answer(lease, turn)
        self._wake()

    def _answer(self, lease: int, turn: Decoding) -> None:
        del self._batch[lease]
        said = np.array(turn.said, np.int32)
        self._sessions[(turn.header.ticket or 0, turn.header.attempt or 0)] = np.concatenate([turn.prompt, said])
        action = Action(
            finish_reason="stop", sample_spans=tuple(turn.spans), kv_spans=tuple(turn.spans), tokens=said,
            logprobs=np.zeros(said.size, np.float32), kept_ids=no_tokens(), kept_counts=no_tokens(),
        )  # fmt: skip
        fields = {**carried(turn.header), "turn": turn.header.turn, "context_tokens": int(turn.prompt.size), "new_tokens": int(said.size),
                  "trainable_tokens": int(said.size), **versions(turn.spans)}  # fmt: skip
        self.commit(acks=[lease], puts=[Put("actions", action, fields)])


def _extend(spans: list[VersionSpan], start: int, tokens: int, version: int) -> None:
    if spans and spans[-1].version == version:
        spans[-1] = VersionSpan(spans[-1].start, start + tokens, version)
    else:
        spans.append(VersionSpan(start, start + tokens, version))
