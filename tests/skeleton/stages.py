"""The six stages of the skeleton. They check what the broker hands them as the real ones do: digests, held tokens, order of steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from msgspec.structs import replace

from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.messages import (
    Abort,
    BrokerMessage,
    CheckpointSaved,
    CloseSession,
    Fence,
    Grant,
    GrantAsked,
    GrantReleased,
    InstallOrder,
    Plan,
    PlanVoided,
    Receipt,
    StepCommitted,
    Voted,
)
from schemas.records import (
    Action,
    Array,
    Episode,
    Install,
    Sample,
    Sampling,
    Ticket,
    Turn,
    TurnBounds,
    Version,
    VersionSpan,
    no_logprobs,
    no_tokens,
)
from stages.service.stage import Delivery, Put, Ready
from tests.skeleton.peer import WINDOW, Peer, carried
from tests.skeleton.policy import STOP, TOKENS, observe, reward_of, say, turns_of


def digest_of(tokens: Array) -> int:
    return xxhash.xxh3_64_intdigest(tokens.tobytes())


@dataclass
class Played:
    """A session as its env sees it."""

    ticket: Delivery
    body: Ticket
    tokens: Array = field(default_factory=no_tokens)
    mask: list[int] = field(default_factory=list)
    bounds: list[TurnBounds] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)


class FakeEnv(Peer):
    role = Role.ENV
    queue = "tickets"

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[tuple[int, int], Played] = {}

    def answer(self, delivery: Delivery) -> None:
        header = delivery.header
        key = (header.ticket or 0, header.attempt or 0)
        if header.queue == "tickets":
            self.sessions[key] = Played(delivery, delivery.record(Ticket))
            self._turn(self.sessions[key], ())
        elif key in self.sessions:
            self._read(self.sessions[key], delivery)

    def _turn(self, played: Played, acks: Sequence[int]) -> None:
        number, tokens = len(played.bounds), observe(played.body.task_index, len(played.bounds))
        turn = Turn(context_digest=digest_of(played.tokens), sampling=Sampling(stop_tokens=(STOP,), max_new_tokens=TOKENS),
                    seed=played.body.seed, tokens=tokens)  # fmt: skip
        fields = carried(played.ticket.header) | {"turn": number, "context_tokens": played.tokens.size, "new_tokens": tokens.size}
        self.link.commit(acks=acks, puts=[Put(queue="turns", record=turn, fields=fields)])
        played.tokens = np.concatenate([played.tokens, tokens])
        played.mask += [0] * tokens.size

    def _read(self, played: Played, delivery: Delivery) -> None:
        action, start = delivery.record(Action), played.tokens.size
        assert action.sample_spans[0].start == start, f"the action starts at {action.sample_spans[0].start}, the session has {start} tokens"
        played.tokens = np.concatenate([played.tokens, action.tokens])
        played.mask += [1] * action.tokens.size
        played.bounds.append(TurnBounds(start - 2, start, played.tokens.size))
        played.spans += action.sample_spans
        if len(played.bounds) < turns_of(played.body.task_index):
            self._turn(played, [delivery.lease])
        else:
            self._end(played, delivery, action)

    def _end(self, played: Played, delivery: Delivery, last: Action) -> None:
        mask = np.array(played.mask, np.uint8)
        episode = Episode(
            task={"index": played.body.task_index}, outcome={}, turns=tuple(played.bounds), sample_spans=tuple(played.spans),
            kv_spans=last.kv_spans, tokens=played.tokens, loss_mask=mask, logprobs=np.where(mask, -0.5, 0.0).astype(np.float32),
            kept_ids=no_tokens(), kept_counts=no_tokens(),
        )  # fmt: skip
        versions = [span.version for span in played.spans]
        fields = carried(played.ticket.header) | {
            "new_tokens": played.tokens.size, "trainable_tokens": int(mask.sum()), "oldest_version": min(versions),
            "newest_version": max(versions),
        }  # fmt: skip
        self.link.commit(acks=[delivery.lease, played.ticket.lease], puts=[Put(queue="episodes", record=episode, fields=fields)])
        del self.sessions[(played.ticket.header.ticket or 0, played.ticket.header.attempt or 0)]

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        super().order(message, frames)
        if isinstance(message, Abort):
            self.sessions = {key: played for key, played in self.sessions.items() if played.ticket.lease != message.lease}


class FakeRollout(Peer):
    role = Role.ROLLOUT
    queue = "turns"

    def __init__(self) -> None:
        super().__init__()
        self.installed: int | None = None
        self.sessions: dict[tuple[int, int], Array] = {}

    def hello(self) -> Ready:
        return Ready(windows={"turns": WINDOW}, installed=self.installed, sessions=tuple(self.sessions))

    def answer(self, delivery: Delivery) -> None:
        header, turn = delivery.header, delivery.record(Turn)
        key = (header.ticket or 0, header.attempt or 0)
        context = np.concatenate([self.sessions.get(key, no_tokens())[: delivery.held_tokens], *delivery.context]).astype(np.int32)
        assert digest_of(context) == turn.context_digest, f"session {key}: {context.size} tokens are not what env digested"
        assert self.installed is not None, "a turn came before any version"
        action = say(turn.seed, context.size + turn.tokens.size, self.installed)
        fields = carried(header, "turn") | {
            "context_tokens": context.size + turn.tokens.size, "new_tokens": TOKENS, "trainable_tokens": TOKENS,
            "oldest_version": self.installed, "newest_version": self.installed,
        }  # fmt: skip
        self.sessions[key] = np.concatenate([context, turn.tokens, action.tokens])
        self.link.commit(acks=[delivery.lease], puts=[Put(queue="actions", record=action, fields=fields)])

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        super().order(message, frames)
        if isinstance(message, CloseSession):
            self.sessions.pop((message.ticket, message.attempt), None)
        elif isinstance(message, InstallOrder):
            install = decode_record(Install, frames)
            self.installed = install.number
            self.link.send(Receipt(lineage=install.lineage, number=install.number, digest=install.digest))


class FakeReward(Peer):
    role = Role.REWARD
    queue = "episodes"

    def answer(self, delivery: Delivery) -> None:
        header, episode = delivery.header, delivery.record(Episode)
        reward = reward_of(episode.task["index"], header.member or 0)
        sample = Sample(
            reward=reward, reward_parts={"parity": reward}, segments=((0, episode.tokens.size),), sample_spans=episode.sample_spans,
            kv_spans=episode.kv_spans, tokens=episode.tokens, loss_mask=episode.loss_mask, logprobs=episode.logprobs,
            ref_logprobs=no_logprobs(), kept_ids=episode.kept_ids, kept_counts=episode.kept_counts,
        )  # fmt: skip
        fields = sample_fields(delivery) | {"reward": reward}
        self.link.commit(acks=[delivery.lease], puts=[Put(queue="scored", record=sample, fields=fields)])


class FakeReference(Peer):
    role = Role.REFERENCE
    queue = "scored"

    def answer(self, delivery: Delivery) -> None:
        sample = delivery.record(Sample)
        done = replace(sample, ref_logprobs=sample.logprobs - np.float32(0.125))
        fields = sample_fields(delivery) | {"reward": delivery.header.reward}
        self.link.commit(acks=[delivery.lease], puts=[Put(queue="samples", record=done, fields=fields)])


def sample_fields(delivery: Delivery) -> dict[str, object]:
    return carried(delivery.header, "new_tokens", "trainable_tokens", "oldest_version", "newest_version")


class FakeTrainer(Peer):
    """Its weights are the number of steps taken; a checkpoint is a small JSON file in the run directory."""

    role = Role.ACTOR_TRAIN

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.in_hand: Plan | None = None
        self.announce = False
        self.trained: list[int] = []

    def hello(self) -> Ready:
        folder = Path(self.link.run_directory) / "checkpoints"
        folder.mkdir(exist_ok=True)
        self.step = max([self.step, *(json.loads(file.read_text())["step"] for file in folder.glob("*.json"))])
        self.announce = True
        return Ready(resume_step=self.step, step_in_hand=self.in_hand.step if self.in_hand else None)

    def work(self) -> bool:
        super().work()
        if self.announce:
            self.announce = False
            self._publish()
        return False

    def _publish(self) -> None:
        digest = xxhash.xxh3_64_hexdigest(str(self.step).encode())
        version = Version(lineage=0, number=self.step, digest=digest, location="nowhere", tensors=())
        fields = {"newest_version": self.step, "weights": digest, "lineage": 0}
        self.link.commit(puts=[Put(queue="versions", record=version, fields=fields)])

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        super().order(message, frames)
        if isinstance(message, Plan):
            assert message.step == self.step + 1, f"planned step {message.step}, {self.step} are taken"
            self._check(message, frames)
            self.in_hand = message
            self.link.send(GrantAsked())
        elif isinstance(message, Grant):
            self.link.send(GrantReleased(grant=message.grant))
            self._vote()
        elif isinstance(message, PlanVoided):
            self.in_hand = None
        elif isinstance(message, StepCommitted):
            self._apply(message)
        elif isinstance(message, Fence):
            raise AssertionError("the skeleton holds a grant for no time at all")

    def _check(self, plan: Plan, frames: Sequence[Frame]) -> None:
        start = trainable = 0
        for header in plan.samples:
            sample = decode_record(Sample, frames[start : start + len(header.frames)])
            start += len(header.frames)
            trainable += int(sample.loss_mask.sum())
            assert sample.ref_logprobs.size == sample.tokens.size, "a sample without its reference log-probs"
        assert start == len(frames), f"{len(frames)} frames, the headers describe {start}"
        assert trainable == plan.token_denominator, f"{trainable} trainable tokens, the plan says {plan.token_denominator}"

    def _vote(self) -> None:
        if self.in_hand is not None:
            self.link.send(Voted(step=self.in_hand.step, ok=True, metrics={"loss": 1.0 / self.in_hand.step}))

    def _apply(self, order: StepCommitted) -> None:
        if order.step <= self.step:
            return
        assert self.in_hand is not None, f"step {order.step} was committed, none is in hand"
        self.trained += [header.ticket or 0 for header in self.in_hand.samples]
        self.step, self.in_hand = order.step, None
        checkpoint = Path(self.link.run_directory) / "checkpoints" / f"{self.step:06d}.json"
        checkpoint.with_suffix(".partial").write_text(json.dumps({"step": self.step}))
        checkpoint.with_suffix(".partial").rename(checkpoint)
        self.link.send(CheckpointSaved(step=self.step))
        self.announce = True


class FakeWeightSync(Peer):
    role = Role.WEIGHT_SYNC
    queue = "versions"

    def answer(self, delivery: Delivery) -> None:
        version = delivery.record(Version)
        install = Install(lineage=version.lineage, number=version.number, digest=version.digest, location=version.location, tensors=())
        fields = {"newest_version": version.number, "weights": version.digest, "lineage": version.lineage}
        self.link.commit(acks=[delivery.lease], puts=[Put(queue="installs", record=install, fields=fields)])


FAKES: dict[Role, type[Peer]] = {fake.role: fake for fake in (FakeEnv, FakeRollout, FakeReward, FakeReference, FakeTrainer, FakeWeightSync)}
