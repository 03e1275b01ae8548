"""The env stage: plays tickets, many sessions a process, and speaks with the policy only through the broker.

    tickets ─► [ session on the playground's thread ] ─► turns      first turn: no acks, the ticket stays leased
    actions ─►                                        ─► turns      acks the action
                                                      ─► episodes   acks action and ticket

Owns: the leases of its sessions, and the windows. Promises: one commit a turn; user code never runs on this thread; what user
code does wrong fails its ticket, not the process. Does not know where the policy runs, what a reward is, or what a step is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from schemas.codec import Frame
from schemas.config import EnvConfig, PipelineConfig
from schemas.edges import Role
from schemas.errors import WireError
from schemas.header import Purpose
from schemas.messages import Abort, BrokerMessage, Failure, Welcome
from schemas.records import Action, Sampling, Ticket
from stages.env.environment import LoadedEnvironment
from stages.env.playground import MakeSession, Playground
from stages.env.session import Answer, Asked, Failed, Finished, Opening, Said, Session, SessionKey
from stages.env.settings import OpenedEnvironment, open_environment, purpose_sampling, session_rules
from stages.env.transcript import versions_of
from stages.env.user_code import UserCode
from stages.env.vocabulary import Vocabulary
from stages.service.stage import Delivery, Link, Put, Ready

log = structlog.get_logger("env")


@dataclass
class Held:
    """A session as this thread sees it. `asked_at` is None while the environment, not the policy, has the word."""

    ticket_lease: int
    fields: dict[str, Any]
    turn: int = -1
    action_lease: int | None = None
    asked_at: float | None = None


@dataclass
class Counts:
    """What the process has done since its start."""

    sessions: int = 0
    turns: int = 0
    episodes: int = 0
    truncated: int = 0
    failures: int = 0
    tokens: int = 0
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0


@dataclass
class Env:
    """See the module. `clock` gives seconds on a monotonic clock; `opener` finds the environment, under a debugger where wanted."""

    clock: Callable[[], float] = time.monotonic
    opener: Callable[[EnvConfig], OpenedEnvironment] = open_environment
    role: Role = field(default=Role.ENV, init=False)

    def __post_init__(self) -> None:
        self._held: dict[SessionKey, Held] = {}
        self._of_lease: dict[int, SessionKey] = {}
        self._counts = Counts()
        self._playground: Playground | None = None

    def start(self, welcome: Welcome, link: Link) -> None:
        """Loads environment and tokenizer. Raises ConfigError."""
        self._link = link
        self._heartbeat_s = welcome.heartbeat_s
        self._config = PipelineConfig.model_validate(welcome.config)
        self._loaded = self.opener(self._config.stages.env)
        vocabulary = Vocabulary.open(self._config.model.path)
        stops = vocabulary.stop_tokens(self._loaded.stop_text)
        self._sampling: dict[str, Sampling] = {
            "train": purpose_sampling(self._config, "train", stops),
            "eval": purpose_sampling(self._config, "eval", stops),
        }
        self._playground = Playground(self._session_maker(self._loaded.environment, vocabulary), self.clock)

    def _session_maker(self, loaded: LoadedEnvironment, vocabulary: Vocabulary) -> MakeSession:
        settings = self._config.stages.env
        rules = session_rules(settings)

        def make(opening: Opening, say: Callable[[Said], None]) -> Session:
            return Session(opening, rules, UserCode(loaded, settings.options, rules.turn_deadline_s), vocabulary, say)

        return make

    def hello(self) -> Ready:
        """Sessions go on over a reconnect: the service loop says which leases are held."""
        named = {self._loaded.environment.path: self._loaded.environment.fingerprint}
        return Ready(windows={"tickets": self._config.stages.env.sessions}, user_code=named)

    def deliver(self, delivery: Delivery) -> None:
        if delivery.header.queue == "tickets":
            self._begin(delivery)
        else:
            self._answer(delivery)

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        """`Abort` of a ticket ends its session silently; nothing else is meant for this stage."""
        if isinstance(message, Abort) and message.lease in self._of_lease:
            key = self._of_lease[message.lease]
            self._drop(key)
            self._running().stop(key)

    def work(self) -> bool:
        """Commits what the sessions have said since the last call."""
        for said in self._running().take():
            held = self._held.get(said.key)
            if held is None:
                continue
            if isinstance(said, Asked):
                self._commit_turn(said, held)
            elif isinstance(said, Finished):
                self._commit_episode(said, held)
            else:
                self._fail(said, held)
        return False

    def responsive(self) -> bool:
        """False while user code has blocked the sessions' thread for more than a heartbeat: leases must not be renewed then."""
        return self._playground is None or self._playground.blocked_s() <= self._heartbeat_s

    def stats(self) -> dict[str, float]:
        counts = self._counts
        waiting = sum(held.asked_at is not None for held in self._held.values())
        return {
            "sessions": len(self._held),
            "sessions_waiting": waiting,
            "sessions_total": counts.sessions,
            "turns_total": counts.turns,
            "episodes_total": counts.episodes,
            "truncated_total": counts.truncated,
            "failures_total": counts.failures,
            "tokens_total": counts.tokens,
            "busy_seconds_total": counts.environment_seconds,
            "wait_seconds_total": counts.policy_seconds,
        }

    def waiting(self) -> str:
        if self._playground is None:
            return ""
        blocked = self._playground.blocked_s()
        if blocked > self._heartbeat_s:
            return (
                f"on user code of {self._playground.blocker() or 'a session'}, which blocks its thread for {blocked:.0f} s; it must await"
            )
        if not self._held:
            return "on the broker for tickets"
        asked = [held.asked_at for held in self._held.values() if held.asked_at is not None]
        if len(asked) < len(self._held):
            return ""
        return f"on rollout for {len(asked)} actions, the oldest since {self.clock() - min(asked):.0f} s"

    def drained(self) -> bool:
        return not self._held

    def close(self) -> None:
        if self._playground is not None:
            self._playground.close()
            self._playground = None

    def wake_fd(self) -> int | None:
        return self._running().wake_fd

    def _running(self) -> Playground:
        assert self._playground is not None, "start() comes first"
        return self._playground

    def _begin(self, delivery: Delivery) -> None:
        header, ticket = delivery.header, delivery.record(Ticket)
        purpose: Purpose = header.purpose or "train"
        key = (header.ticket or 0, header.attempt or 0)
        fields = {name: getattr(header, name) for name in ("ticket", "group", "member", "attempt", "purpose")}
        self._held[key] = Held(delivery.lease, fields)
        self._of_lease[delivery.lease] = key
        self._counts.sessions += 1
        opening = Opening(key, ticket, header.member or 0, purpose, self._sampling[purpose], self._config.run.seed)
        self._running().start(opening)

    def _answer(self, delivery: Delivery) -> None:
        """An action of a session that is gone, or of another turn, is ignored: its lease ends with the session."""
        key = (delivery.header.ticket or 0, delivery.header.attempt or 0)
        held = self._held.get(key)
        if held is None or delivery.header.turn != held.turn:
            return
        held.action_lease = delivery.lease
        if held.asked_at is None:
            return  # the same action once more, under a new lease
        waited, held.asked_at = self.clock() - held.asked_at, None
        self._counts.policy_seconds += waited
        try:
            action = delivery.record(Action)
        except WireError as error:
            self._running().stop(key)
            self._fail(Failed(key, "rollout", str(error)), held)
            return
        self._running().answer(key, Answer(action, waited))

    def _commit_turn(self, said: Asked, held: Held) -> None:
        new_tokens = int(said.turn.tokens.size)
        counted = {"turn": said.number, "context_tokens": said.context_tokens, "new_tokens": new_tokens}
        put = Put(queue="turns", record=said.turn, fields={**held.fields, **counted})
        self._link.commit(acks=self._answered(held), puts=[put])
        held.turn, held.asked_at = said.number, self.clock()
        self._counts.turns += 1

    def _commit_episode(self, said: Finished, held: Held) -> None:
        episode = said.episode
        trainable = int(episode.loss_mask.sum())
        counted = {
            "new_tokens": int(episode.tokens.size),
            "trainable_tokens": trainable,
            "truncated": episode.truncated,
            **versions_of(episode.sample_spans),
        }
        put = Put(queue="episodes", record=episode, fields={**held.fields, **counted})
        self._link.commit(acks=[*self._answered(held), held.ticket_lease], puts=[put])
        self._drop(said.key)
        self._counts.episodes += 1
        self._counts.truncated += episode.truncated
        self._counts.tokens += trainable
        self._counts.environment_seconds += episode.environment_seconds

    def _fail(self, said: Failed, held: Held) -> None:
        """The ticket's lease carries the failure; the broker closes the session and all else that belongs to it."""
        log.warning("session_failed", ticket=said.key[0], attempt=said.key[1], boundary=said.boundary, reason=said.reason)
        self._link.commit(fails=[Failure(lease=held.ticket_lease, boundary=said.boundary, reason=said.reason)])
        self._drop(said.key)
        self._counts.failures += 1

    def _answered(self, held: Held) -> list[int]:
        """The lease of the action that was just worked off, if any."""
        lease, held.action_lease = held.action_lease, None
        return [] if lease is None else [lease]

    def _drop(self, key: SessionKey) -> None:
        del self._of_lease[self._held.pop(key).ticket_lease]
