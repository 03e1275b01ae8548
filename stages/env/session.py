"""One session: the conversation between a user's environment and the policy, as one coroutine.

    open ─► reset ─► [ask ─► answered ─► step]* ─► Finished | Failed

Says what happens through `say`, exactly one Finished or Failed at the end, nothing after a cancellation. An episode that meets
its token, turn or time limit is truncated, which is an episode, as soon as the policy has said something; before that there is
nothing to train on or to judge, and it fails. Does not know leases, queues or the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from schemas.errors import EnvironmentFailure, WireError
from schemas.header import Purpose
from schemas.records import Action, Array, Episode, Sampling, Ticket, Turn
from stages.env.environment import Done
from stages.env.seeds import environment_seed, turn_seed
from stages.env.transcript import Ending, Transcript
from stages.env.user_code import UserCode, told
from stages.env.vocabulary import Vocabulary

CHARACTERS_A_TOKEN = 64
"""Text with more characters than this for each token of room cannot fit: it is not even encoded, which would stop every session."""

SessionKey = tuple[int, int]
"""(ticket, attempt)."""


class Asked(Struct, frozen=True):
    """The policy's turn. `number` counts turns from 0, `context_tokens` the session's tokens before it."""

    key: SessionKey
    number: int
    turn: Turn
    context_tokens: int


class Finished(Struct, frozen=True):
    """The session came to its end."""

    key: SessionKey
    episode: Episode


class Failed(Struct, frozen=True):
    """The session cannot go on; `boundary` says whose fault it is."""

    key: SessionKey
    boundary: str
    reason: str


Said = Asked | Finished | Failed


@dataclass(frozen=True)
class Rules:
    """What bounds a session: tokens, turns, seconds."""

    max_turns: int
    max_episode_tokens: int
    turn_deadline_s: float
    episode_deadline_s: float


@dataclass(frozen=True)
class Opening:
    """What a session is begun with. `sampling` is the purpose's, stop tokens included; `task_seed` is the run's."""

    key: SessionKey
    ticket: Ticket
    member: int
    purpose: Purpose
    sampling: Sampling
    task_seed: int


class Answer(Struct, frozen=True):
    """An action and the seconds that the policy took for it."""

    action: Action
    policy_seconds: float


class _Truncated(Exception):
    """The session met a limit."""


class Session:
    """Made and run on the environment's event loop only."""

    def __init__(self, opening: Opening, rules: Rules, user: UserCode, vocabulary: Vocabulary, say: Callable[[Said], None]) -> None:
        self._opening = opening
        self._rules = rules
        self._user = user
        self._vocabulary = vocabulary
        self._say = say
        self._transcript = Transcript(rules.max_episode_tokens)
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._policy_seconds = 0.0
        self._task: dict[str, object] = {}

    def answer(self, answer: Answer) -> None:
        """The action that answers the last Asked."""
        self._answers.put_nowait(answer)

    async def play(self) -> None:
        """From the ticket to Finished or Failed; raises nothing but cancellation."""
        key = self._opening.key
        try:
            self._say(Finished(key, await self._within_deadline()))
        except EnvironmentFailure as error:
            self._say(Failed(key, "env", str(error)))
        except WireError as error:
            self._say(Failed(key, "rollout", str(error)))

    async def _within_deadline(self) -> Episode:
        try:
            async with asyncio.timeout(self._rules.episode_deadline_s):
                return self._episode(await self._converse())
        except (TimeoutError, _Truncated) as error:
            if self._transcript.turns:
                return self._episode(Done(outcome={}, truncated=True))
            limit = str(error) or f"episode deadline: more than {self._rules.episode_deadline_s:g} s"
            raise EnvironmentFailure(f"{limit}, before the policy's first action") from error

    async def _converse(self) -> Done:
        opening = self._opening
        seed = environment_seed(opening.ticket.seed, opening.member)
        self._task = self._user.open(opening.ticket.task_index, opening.purpose, opening.task_seed, seed)
        said = await self._user.reset(self._task)
        tokens = self._encode(said.text)
        if not tokens.size:
            raise EnvironmentFailure("the opening text has no tokens; the policy has nothing to answer")
        while True:
            reply = await self._user.step(await self._ask(tokens))
            if isinstance(reply, Done):
                self._last_words(reply.text)
                return reply
            if self._transcript.turns >= self._rules.max_turns:
                raise _Truncated(f"more than {self._rules.max_turns} turns")
            tokens = self._encode(reply.text)

    async def _ask(self, tokens: Array) -> str:
        """One turn of the policy: puts the question, waits for the action, returns its text."""
        if tokens.size >= self._transcript.room:
            raise _Truncated(f"max_episode_tokens: no room for {tokens.size} tokens and an answer")
        opening, before, number = self._opening, self._transcript.length, self._transcript.turns
        seed = turn_seed(opening.ticket.seed, opening.member, number)
        turn = self._transcript.ask(tokens, opening.sampling, seed)
        self._say(Asked(opening.key, number, turn, before))
        answer = await self._answers.get()
        self._policy_seconds += answer.policy_seconds
        self._transcript.answer(answer.action)
        return self._vocabulary.decode(answer.action.tokens)

    def _last_words(self, text: str) -> None:
        """What the policy never reads is kept where there is room: a verifier may want it, training does not."""
        if self._is_hopeless(text):
            return
        tokens = self._encode(text) if text else np.empty(0, np.int32)
        if tokens.size <= self._transcript.room:
            self._transcript.append(tokens)

    def _is_hopeless(self, text: str) -> bool:
        return len(text) > CHARACTERS_A_TOKEN * max(1, self._transcript.room)

    def _encode(self, text: str) -> Array:
        if self._is_hopeless(text):
            raise _Truncated(f"max_episode_tokens: no room for {len(text)} characters and an answer")
        try:
            return self._vocabulary.encode(text)
        except Exception as error:
            raise EnvironmentFailure(f"the tokenizer refuses what the environment said: {told(error)}") from error

    def _episode(self, done: Done) -> Episode:
        ending = Ending(self._task, done.outcome, done.truncated, self._user.seconds, self._policy_seconds)
        return self._transcript.episode(ending)
