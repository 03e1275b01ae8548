"""The reward stage: judges episodes with a user's verifier, in worker processes, and puts them on as samples.

    episodes ─► FinishedEpisode ─► worker ─► parts ─► weighted sum ─► scored      acks the episode, puts the sample

Owns: the episodes that it holds, the workers. Promises: train and eval episodes go the same way; tokens, mask and log-probs pass
unchanged; whatever a verifier does wrong fails its record, not the process. Does not know what a reward is used for.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from schemas.codec import Frame
from schemas.config import PipelineConfig
from schemas.edges import Role
from schemas.errors import VerifierFailure, WireError
from schemas.header import Header
from schemas.messages import Abort, BrokerMessage, Failure, Welcome
from schemas.records import Episode, Sample, no_logprobs
from stages.reward.pool import Verdict, WorkerPool
from stages.reward.reading import Reader, open_reader
from stages.reward.verdicts import Begin, Judge, Judged
from stages.reward.verifier import load_verifier
from stages.reward.worker import is_async
from stages.service.stage import Delivery, Link, Put, Ready

log = structlog.get_logger("reward")

WINDOW = 64
"""Episodes that one process holds: enough to keep its workers busy between two deliveries, few enough to share among several."""
CARRIED = (
    "ticket",
    "group",
    "member",
    "attempt",
    "purpose",
    "new_tokens",
    "trainable_tokens",
    "oldest_version",
    "newest_version",
    "truncated",
)
"""Header fields that a sample has from its episode."""


@dataclass
class Held:
    """An episode that is being judged."""

    header: Header
    episode: Episode
    since: float


@dataclass
class Counts:
    """What the process has done since its start."""

    episodes: int = 0
    failures: int = 0
    tokens: int = 0
    reward: float = 0.0


class Pool(Protocol):
    """Who judges: `stages.reward.pool.WorkerPool`, or one without processes of its own, for a debugger."""

    busy_seconds: float

    def fileno(self) -> int: ...
    def submit(self, request: Judge) -> None: ...
    def cancel(self, number: int) -> None: ...
    def take(self) -> list[Verdict]: ...
    def close(self) -> None: ...


PoolMaker = Callable[[Begin, int, int, Callable[[], float]], Pool]


@dataclass
class Reward:
    """See the module. `clock` gives seconds on a monotonic clock."""

    clock: Callable[[], float] = time.monotonic
    pool_maker: PoolMaker = WorkerPool
    role: Role = field(default=Role.REWARD, init=False)

    def __post_init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._counts = Counts()
        self._pool: Pool | None = None

    def start(self, welcome: Welcome, link: Link) -> None:
        """Imports the verifier here too, so that a wrong name is told before the first episode. Raises ConfigError."""
        self._link = link
        self._config = PipelineConfig.model_validate(welcome.config)
        settings = self._config.stages.reward
        sys.path.extend(folder for folder in settings.path if folder not in sys.path)
        self._verifier = load_verifier(settings.verifier)
        self._verifier.check_weights(settings.weights)
        self._reader: Reader = open_reader(self._config.model.path)
        begin = Begin(settings.verifier, tuple(sys.path), settings.timeout_s)
        depth = WINDOW if is_async(self._verifier) else 1
        self._pool = self.pool_maker(begin, settings.workers, depth, self.clock)

    def hello(self) -> Ready:
        return Ready(windows={"episodes": WINDOW}, user_code={self._verifier.path: self._verifier.fingerprint})

    def deliver(self, delivery: Delivery) -> None:
        try:
            episode = delivery.record(Episode)
            finished = self._reader.finished(episode)
        except (WireError, VerifierFailure) as error:
            self._fail(delivery.lease, str(error))
            return
        self._held[delivery.lease] = Held(delivery.header, episode, self.clock())
        self._running().submit(Judge(delivery.lease, finished))

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        """`Abort` of an episode: its answer is ignored when it comes."""
        if isinstance(message, Abort) and self._held.pop(message.lease, None) is not None:
            self._running().cancel(message.lease)

    def work(self) -> bool:
        """Commits what has been judged since the last call; ends workers that are past their limit."""
        for verdict in self._running().take():
            held = self._held.pop(verdict.number, None)
            if held is None:
                continue
            if not isinstance(verdict, Judged):
                self._fail(verdict.number, verdict.reason)
                continue
            try:
                reward = weighted_sum(verdict.parts, self._config.stages.reward.weights)
            except VerifierFailure as error:
                self._fail(verdict.number, str(error))
                continue
            self._score(verdict.number, held, reward, verdict.parts)
        return False

    def stats(self) -> dict[str, float]:
        counts = self._counts
        return {
            "episodes": len(self._held),
            "episodes_total": counts.episodes,
            "failures_total": counts.failures,
            "tokens_total": counts.tokens,
            "reward_total": counts.reward,
            "busy_seconds_total": self._running().busy_seconds,
        }

    def waiting(self) -> str:
        if not self._held:
            return "on env for episodes"
        oldest = self.clock() - min(held.since for held in self._held.values())
        return f"on the verifier for {len(self._held)} episodes, the oldest since {oldest:.0f} s" if oldest > 1.0 else ""

    def drained(self) -> bool:
        return not self._held

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def wake_fd(self) -> int | None:
        return self._running().fileno()

    def _running(self) -> Pool:
        assert self._pool is not None, "start() comes first"
        return self._pool

    def _score(self, lease: int, held: Held, reward: float, parts: dict[str, float]) -> None:
        purpose = held.header.purpose or "train"
        temperature = self._config.evaluation.temperature if purpose == "eval" else self._config.sampling.temperature
        fields = {name: getattr(held.header, name) for name in CARRIED} | {"reward": reward}
        put = Put(queue="scored", record=sample_of(held.episode, reward, parts, temperature), fields=fields)
        self._link.commit(acks=[lease], puts=[put])
        self._counts.episodes += 1
        self._counts.tokens += int(held.episode.tokens.size)
        self._counts.reward += reward

    def _fail(self, lease: int, reason: str) -> None:
        log.warning("episode_failed", lease=lease, reason=reason)
        self._link.commit(fails=[Failure(lease=lease, boundary="verifier", reason=reason)])
        self._counts.failures += 1


def weighted_sum(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The reward: each part times its weight, 1 where none is named. Raises VerifierFailure where that is not finite."""
    total = sum(weights.get(name, 1.0) * part for name, part in parts.items())
    if not math.isfinite(total):
        raise VerifierFailure(f"the weighted parts {dict(parts)} add up to {total}; rewards are finite")
    return total


def sample_of(episode: Episode, reward: float, parts: dict[str, float], temperature: float) -> Sample:
    """The episode with its reward; arrays are passed on, not copied."""
    return Sample(
        reward=reward,
        reward_parts=parts,
        segments=((0, int(episode.tokens.size)),),
        sample_spans=episode.sample_spans,
        kv_spans=episode.kv_spans,
        truncated=episode.truncated,
        near_ties=episode.near_ties,
        tool_calls=number_in(episode.outcome, "tool_calls"),
        temperature=temperature,
        tokens=episode.tokens,
        loss_mask=episode.loss_mask,
        logprobs=episode.logprobs,
        ref_logprobs=no_logprobs(),
        kept_ids=episode.kept_ids,
        kept_counts=episode.kept_counts,
    )


def number_in(outcome: Mapping[str, Any], name: str) -> float | None:
    """`outcome[name]` where it is a finite number, else None."""
    value = outcome.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
