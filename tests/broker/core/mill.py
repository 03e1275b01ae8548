"""A broker's core that is fed by hand: events in, orders out, all promises checked after every event.

`Mill` speaks for the clients, in as few words as a test needs; records have headers only, for the core reads no more of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from broker.core.actions import Action, EndRun, Note, Reply, Send
from broker.core.events import Event, Received, Restarted, Started, Tick, decode_event, encode_event
from broker.core.invariants import violations
from broker.core.state import State
from broker.core.step import begin, step
from schemas import messages as wire
from schemas.config import PipelineConfig
from schemas.edges import EDGES, Role
from schemas.header import Header
from schemas.lock import schema_fingerprint

MessageT = TypeVar("MessageT", bound=wire.Message)

RAW: dict[str, Any] = {
    "pipeline": {"name": "test"},
    "model": {"path": "none"},
    "schedule": {"kind": "async", "max_lag": 1, "groups_per_step": 1, "members": 2, "steps": 3, "drop_uniform": False},
    "evaluation": {"problems": 2, "at_start": False, "at_end": False},
    "stages": {"env": {"environment": "a:B"}, "reward": {"verifier": "a:b"}},
}
ROLE_OF = {"env": Role.ENV, "rollout": Role.ROLLOUT, "reward": Role.REWARD, "reference": Role.REFERENCE, "trainer": Role.ACTOR_TRAIN,
           "sync": Role.WEIGHT_SYNC, "host": Role.HOST, "observer": Role.OBSERVER}  # fmt: skip
WINDOWS = {"env": {"tickets": 8}, "rollout": {"turns": 8}, "reward": {"episodes": 8}, "reference": {"scored": 8}, "sync": {"versions": 4}}


def a_config(**overrides: Any) -> dict[str, Any]:
    """The small pipeline with `section__key=value` overrides; deeper sections as `stages__env__sessions`."""
    raw: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(RAW))
    for path, value in overrides.items():
        *sections, key = path.split("__")
        place = raw
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return PipelineConfig.model_validate(raw).model_dump(mode="json")


def a_header(queue: str, **fields: Any) -> Header:
    """A record's header, without frames."""
    return Header(record=EDGES[queue].record, fingerprint=0, pipeline=fields.pop("pipeline", "test"), queue=queue, frames=(), **fields)


class Mill:
    """One run of the core. `inbox` holds what each client was sent, by name; `replies` what was answered to strangers."""

    def __init__(self, **overrides: Any) -> None:
        self.now = 0.0
        started = Started(config=a_config(**overrides), run_directory="run")
        self.state: State = begin(started, 0.0)
        self.entries: list[tuple[float, bytes]] = [(0.0, encode_event(started))]
        self.inbox: dict[str, list[wire.Message]] = defaultdict(list)
        self.replies: list[wire.Message] = []
        self.notes: list[Note] = []
        self.actions: list[Action] = []
        self.end: EndRun | None = None
        self.incarnations: dict[str, str] = {}
        self.seqs: dict[str, int] = {}

    # --- events -------------------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> list[Action]:
        """Hands in one event, sorts what is ordered into the inboxes, checks every promise."""
        self.entries.append((self.now, encode_event(event)))
        actions = step(self.state, event, self.now)
        for action in actions:
            if isinstance(action, Send):
                self._check_credit(action)
                self.inbox[action.client].append(action.message)
            elif isinstance(action, Reply):
                self.replies.append(action.message)
            elif isinstance(action, Note):
                self.notes.append(action)
            elif isinstance(action, EndRun):
                self.end = action
        self.actions += actions
        assert violations(self.state) == []
        return actions

    def _check_credit(self, action: Send) -> None:
        message = action.message
        if isinstance(message, wire.Deliver) and message.header.queue != "actions":
            client = self.state.clients[action.client]
            assert client.held[message.header.queue] <= client.windows[message.header.queue], f"{action.client} holds more than its window"

    def check_fold(self) -> None:
        """What was journaled gives the same state, byte for byte."""
        first = decode_event(self.entries[0][1])
        assert isinstance(first, Started)
        state = begin(first, 0.0)
        for now, data in self.entries[1:]:
            step(state, decode_event(data), now)
        assert msgspec.msgpack.encode(state) == msgspec.msgpack.encode(self.state)

    def tick(self, seconds: float = 1.0) -> list[Action]:
        """Time passes."""
        self.now += seconds
        return self.feed(Tick())

    def wait(self, seconds: float, *alive: str) -> None:
        """Time passes second by second; the named clients heartbeat."""
        for _ in range(int(seconds)):
            for name in alive:
                self.say(name, wire.Heartbeat())
            self.tick()

    def restart(self) -> list[Action]:
        """The broker comes back."""
        return self.feed(Restarted())

    # --- clients ------------------------------------------------------------------------------------------------------------

    def hello(self, name: str, *, incarnation: str | None = None, **fields: Any) -> list[Action]:
        """A ready hello: `env-1` is an env with the usual window. A new `incarnation` is a new process of that name."""
        if incarnation is not None and incarnation != self.incarnations.get(name):
            self.incarnations[name] = incarnation
            self.seqs[name] = 0
        self.incarnations.setdefault(name, "a")
        kind = name.rpartition("-")[0] or name
        said = {"protocol": wire.PROTOCOL_VERSION, "schema": schema_fingerprint(), "role": ROLE_OF[kind], "name": name, "pipeline": "",
                "incarnation": self.incarnations[name], "ready": True, "windows": WINDOWS.get(kind, {})}  # fmt: skip
        return self.feed(Received(sender=self.identity(name), message=wire.Hello(**{**said, **fields})))

    def identity(self, name: str) -> str:
        """A client's routing id."""
        return f"{name}/{self.incarnations[name]}"

    def say(self, name: str, message: wire.ClientMessage, *, sender: str = "") -> list[Action]:
        """A message as it stands."""
        return self.feed(Received(sender=sender or self.identity(name), message=message))

    def send(self, name: str, message: wire.Numbered) -> list[Action]:
        """A numbered message with the sender's epoch and next number."""
        self.seqs[name] = self.seqs.get(name, 0) + 1
        numbered: Any = msgspec.structs.replace(message, epoch=self.state.clients[name].epoch, seq=self.seqs[name])
        return self.say(name, numbered)

    def commit(self, name: str, acks: Sequence[int] = (), puts: Sequence[Header] = (), fails: Sequence[wire.Failure] = ()) -> list[Action]:
        """A unit of work."""
        return self.send(name, wire.Commit(acks=tuple(acks), puts=tuple(puts), fails=tuple(fails)))

    def last(self, name: str, kind: type[MessageT]) -> MessageT:
        """The newest message of that kind to a client."""
        return next(message for message in reversed(self.inbox[name]) if isinstance(message, kind))

    def all(self, name: str, kind: type[MessageT]) -> list[MessageT]:
        """Every message of that kind to a client."""
        return [message for message in self.inbox[name] if isinstance(message, kind)]

    def held(self, name: str, queue: str) -> list[wire.Deliver]:
        """What a client holds of a queue, oldest first."""
        return [d for d in self.all(name, wire.Deliver) if d.header.queue == queue and self._is_of(d.lease, name)]

    def _is_of(self, lease: int, name: str) -> bool:
        return lease in self.state.leases and self.state.leases[lease].client == name

    # --- the loop, played by hand -------------------------------------------------------------------------------------------

    def up(self, *names: str) -> Mill:
        """These clients come up; a trainer publishes version 0 and weight-sync brings it to the replicas."""
        for name in names:
            self.hello(name, **({"windows": {}} if name.startswith("rollout") else {}))
        if "trainer" in names:
            self.publish(0)
        for name in names:
            if name.startswith("rollout"):
                self.install(name)
                self.send(name, wire.Credit(queue="turns", window=8))
        return self

    def publish(self, number: int, digest: str | None = None) -> None:
        """The trainer puts a version; weight-sync, if it is there, orders its install."""
        weights = digest or f"w{number}"
        self.commit("trainer", puts=[a_header("versions", newest_version=number, weights=weights)])
        for order in self.held("sync", "versions"):
            put = a_header("installs", newest_version=order.header.newest_version, weights=order.header.weights)
            self.commit("sync", acks=[order.lease], puts=[put])

    def install(self, replica: str, digest: str | None = None) -> None:
        """A replica obeys its newest install order."""
        header = self.last(replica, wire.InstallOrder).header
        self.send(replica, wire.Receipt(lineage=0, number=header.newest_version or 0, digest=digest or header.weights or ""))

    def turn(self, ticket: wire.Deliver, env: str, *, answers: int | None = None, number: int = 0) -> None:
        """An env puts a turn of a session, which acknowledges the action that it `answers`."""
        put = a_header("turns", **whose(ticket.header), turn=number, new_tokens=5)
        self.commit(env, acks=() if answers is None else (answers,), puts=[put])

    def action(self, replica: str, turn: wire.Deliver, version: int = 0) -> None:
        """A replica answers a turn."""
        put = a_header("actions", **whose(turn.header), turn=turn.header.turn, new_tokens=3, oldest_version=version, newest_version=version)
        self.commit(replica, acks=[turn.lease], puts=[put])

    def episode(self, ticket: wire.Deliver, env: str, *answers: int, version: int = 0, tokens: int = 8) -> None:
        """An env finishes a session."""
        put = a_header("episodes", **whose(ticket.header), new_tokens=tokens, trainable_tokens=3, oldest_version=version,
                       newest_version=version)  # fmt: skip
        self.commit(env, acks=[*answers, ticket.lease], puts=[put])

    def score(self, episode: wire.Deliver, reward: float, by: str = "reward-1") -> None:
        """A reward process judges an episode."""
        self.commit(by, acks=[episode.lease], puts=[a_header("scored", **whose(episode.header), reward=reward, trainable_tokens=3)])

    def refer(self, sample: wire.Deliver, by: str = "reference-1") -> None:
        """A reference process computes a sample."""
        put = a_header("samples", **whose(sample.header), reward=sample.header.reward, trainable_tokens=3)
        self.commit(by, acks=[sample.lease], puts=[put])

    def play(self, ticket: wire.Deliver, env: str = "env-1", version: int = 0) -> wire.Deliver:
        """A session of one turn, to its episode; returns the episode as reward has it."""
        self.turn(ticket, env)
        turn = next(d for d in self.turns_held() if whose(d.header) == whose(ticket.header))
        self.action(self.state.leases[turn.lease].client, turn, version)
        action = next(d for d in self.held(env, "actions") if d.header.ticket == ticket.header.ticket)
        self.episode(ticket, env, action.lease, version=version)
        return next(d for d in self.held("reward-1", "episodes") if d.header.ticket == ticket.header.ticket)

    def turns_held(self) -> list[wire.Deliver]:
        """Turns under lease, at any replica."""
        return [d for name in list(self.inbox) if name.startswith("rollout") for d in self.held(name, "turns")]

    def to_ready(self, rewards: Sequence[float], env: str = "env-1", version: int = 0) -> None:
        """As many sessions as there are rewards, from held tickets through to samples."""
        tickets = [d for d in self.held(env, "tickets") if d.header.purpose == "train"][: len(rewards)]
        for ticket, reward in zip(tickets, rewards, strict=True):
            self.score(self.play(ticket, env, version), reward)
        for sample in self.held("reference-1", "scored"):
            self.refer(sample)

    def vote(self, step: int, *, ok: bool = True) -> None:
        """The trainer votes on a plan."""
        self.send("trainer", wire.Voted(step=step, ok=ok, reason="" if ok else "not finite"))

    def train(self, step: int) -> None:
        """The trainer works off the plan of `step` to the new version."""
        self.vote(step)
        self.send("trainer", wire.CheckpointSaved(step=step))
        self.publish(step)
        for name, client in list(self.state.clients.items()):
            if client.role == Role.ROLLOUT and client.offered is not None:
                self.install(name)


def whose(header: Header) -> dict[str, Any]:
    """Header fields that say whose a record is."""
    return {name: getattr(header, name) for name in ("ticket", "group", "member", "attempt", "purpose")}


ALL = ("env-1", "rollout-1", "reward-1", "reference-1", "trainer", "sync")
"""One process of each stage."""
