"""Reward, reference, actor-train and weight-sync as laws.

Weights are a digest of all that was trained, so that a step which is made again is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xxhash
from msgspec.structs import replace

from schemas import messages as wire
from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.header import Header
from schemas.records import Episode, Install, Sample, TensorInfo, Version, no_logprobs
from tools.sim.clients import Delivery, FakeClient, Put, SimulationError
from tools.sim.disk import Training

CARRIED = (
    *("ticket", "group", "member", "attempt", "purpose", "new_tokens", "trainable_tokens"),
    *("oldest_version", "newest_version", "truncated", "reward"),
)
WINDOW = 64
START_DIGEST = "0" * 16


def carried(header: Header) -> dict[str, Any]:
    """Header fields that go on as they came."""
    return {name: getattr(header, name) for name in CARRIED}




class FakeReward(FakeClient):
    """Judges episodes, each after its own time."""

    role: ClassVar[Role] = Role.REWARD

    def start(self) -> None:
        self._held: set[int] = set()

    def ready(self, hello: wire.Hello) -> wire.Hello:
        return replace(hello, windows={"episodes": WINDOW})

    def drained(self) -> bool:
        return not self._held

    def deliver(self, delivery: Delivery) -> None:
        self._held.add(delivery.lease)
        self.after(self.world.laws.reward_s(self.rng), lambda: self._judge(delivery))

    def _judge(self, delivery: Delivery) -> None:
        if delivery.lease not in self._held:
            return
        self._held.discard(delivery.lease)
        episode = decode_record(Episode, delivery.frames)
        reward = float(episode.outcome["correct"])
        sample = Sample(
            reward=reward, reward_parts={"correct": reward}, segments=((0, int(episode.tokens.size)),), sample_spans=episode.sample_spans,
            kv_spans=episode.kv_spans, truncated=episode.truncated, tokens=episode.tokens, loss_mask=episode.loss_mask,
            logprobs=episode.logprobs, ref_logprobs=no_logprobs(), kept_ids=episode.kept_ids, kept_counts=episode.kept_counts,
        )  # fmt: skip
        self.commit(acks=[delivery.lease], puts=[Put("scored", sample, {**carried(delivery.header), "reward": reward})])

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, wire.Abort):
            self._held.discard(message.lease)


class FakeReference(FakeClient):
    """Computes over all it holds once it has a slot."""

    role: ClassVar[Role] = Role.REFERENCE

    def start(self) -> None:
        self._held: dict[int, tuple[Header, Sample]] = {}
        self._grant: int | None = None
        self._asked = False

    def ready(self, hello: wire.Hello) -> wire.Hello:
        self._asked = False
        self.after(0.0, self._ask)
        return replace(hello, windows={"scored": WINDOW}, grants=() if self._grant is None else (self._grant,))

    def drained(self) -> bool:
        return not self._held and self._grant is None

    def deliver(self, delivery: Delivery) -> None:
        self._held[delivery.lease] = (delivery.header, decode_record(Sample, delivery.frames))
        self._ask()

    def _ask(self) -> None:
        if self._held and self._grant is None and not self._asked:
            self._asked = True
            self.send(wire.GrantAsked())

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, wire.Grant):
            self._granted(message)
        elif isinstance(message, wire.Fence) and message.grant == self._grant:
            self._grant = None
            self._ask()
        elif isinstance(message, wire.Abort):
            self._held.pop(message.lease, None)

    def _granted(self, grant: wire.Grant) -> None:
        self._asked = False
        if self._grant is not None or not self._held:
            if grant.grant != self._grant:
                self.send(wire.GrantReleased(grant=grant.grant))
            return
        self._grant = grant.grant
        tokens = sum(sample.tokens.size for _, sample in self._held.values())
        leases = list(self._held)
        self.after(self.world.laws.reference_token_s * tokens, lambda: self._computed(grant.grant, leases))

    def _computed(self, grant: int, leases: list[int]) -> None:
        if self._grant != grant:
            return
        for lease in [lease for lease in leases if lease in self._held]:
            header, sample = self._held.pop(lease)
            sample = replace(sample, ref_logprobs=np.zeros(sample.tokens.size, np.float32))
            self.commit(acks=[lease], puts=[Put("samples", sample, carried(header))])
        self._grant = None
        self.send(wire.GrantReleased(grant=grant))
        self._ask()


@dataclass
class InHand:
    """The plan that is worked on."""

    plan: wire.Plan
    training: Training
    tokens: int
    digest: str
    voted: bool | None = None
    computing: bool = False
    committed: bool = False


class FakeTrainer(FakeClient):
    """Obeys plans: slot, compute, vote, commit, apply, checkpoint, version."""

    role: ClassVar[Role] = Role.ACTOR_TRAIN

    def start(self) -> None:
        checkpoints = self.world.disk.checkpoints
        self._step = max(checkpoints, default=0)
        self._digest = checkpoints.get(self._step, START_DIGEST)
        self._lineage = 0
        self._in_hand: InHand | None = None
        self._grant: int | None = None
        self._applying = False

    def ready(self, hello: wire.Hello) -> wire.Hello:
        self.after(0.0, self._announce)
        return replace(hello, resume_step=self._step, grants=() if self._grant is None else (self._grant,))

    def drained(self) -> bool:
        if self._in_hand is None and self._step > max(self.world.disk.checkpoints, default=0):
            self._save()
        return self._in_hand is None

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        match message:
            case wire.Plan():
                self._take(message, frames)
            case wire.Grant():
                self._granted(message)
            case wire.Fence():
                self._fenced(message)
            case wire.StepCommitted():
                self._committed(message)
            case wire.PlanVoided():
                self._voided(message)

    def _take(self, plan: wire.Plan, frames: Sequence[Frame]) -> None:
        if plan.step != self._step + 1:
            raise SimulationError(f"{self.name} at {self.world.now:.3f} s: plan of step {plan.step}, the weights have taken {self._step}")
        if self._in_hand is not None and self._in_hand.plan == plan:
            self._answer_again(self._in_hand)
            return
        if self.world.disk.first_plan_at is None:
            self.world.disk.first_plan_at = self.world.now
        self._lineage = max(self._lineage, plan.lineage)
        samples = read_samples(plan, frames)
        self._in_hand = InHand(plan, training_of(plan, samples), sum(sample.tokens.size for sample in samples), self._next_digest(plan))
        if self._grant is None:
            self.send(wire.GrantAsked())
        else:
            self._compute(self._in_hand)

    def _next_digest(self, plan: wire.Plan) -> str:
        salt = self.incarnation if self.world.scenario.faults.forgetful_trainer else ""
        text = "/".join([self._digest, salt, *(str(header.digest) for header in plan.samples)])
        return f"{xxhash.xxh3_64_intdigest(text.encode()):016x}"

    def _answer_again(self, hand: InHand) -> None:
        if hand.voted is not None:
            self.send(wire.Voted(step=hand.plan.step, ok=hand.voted))
        elif not hand.computing:
            self.send(wire.GrantAsked())

    def _granted(self, grant: wire.Grant) -> None:
        hand = self._in_hand
        if self._grant is not None or hand is None or hand.computing or hand.voted is not None:
            if grant.grant != self._grant:
                self.send(wire.GrantReleased(grant=grant.grant))
            return
        self._grant = grant.grant
        self._compute(hand)

    def _compute(self, hand: InHand) -> None:
        hand.computing = True
        law = self.world.laws.trainer
        seconds = law.step_s + law.token_s * hand.tokens
        self.world.disk.busy_s += seconds
        self.after(seconds, lambda: self._computed(hand))

    def _computed(self, hand: InHand) -> None:
        if self._in_hand is not hand or not hand.computing:
            return
        disk = self.world.disk
        hand.computing, hand.voted = False, True
        if hand.plan.step in self.world.scenario.faults.votes and hand.plan.step not in disk.voted_down:
            disk.voted_down.add(hand.plan.step)
            hand.voted = False
        self.send(wire.Voted(step=hand.plan.step, ok=hand.voted, metrics={"loss": 0.0}, reason="" if hand.voted else "loss is not finite"))
        self._release()

    def _release(self) -> None:
        if self._grant is not None:
            self.send(wire.GrantReleased(grant=self._grant))
            self._grant = None

    def _fenced(self, fence: wire.Fence) -> None:
        if fence.grant == self._grant:
            self._grant = None
            if self._in_hand is not None and self._in_hand.computing:
                self._in_hand.computing = False
                self.send(wire.GrantAsked())

    def _voided(self, voided: wire.PlanVoided) -> None:
        if self._in_hand is not None and self._in_hand.plan.step == voided.step:
            self._in_hand = None
            self._release()

    def _committed(self, answer: wire.StepCommitted) -> None:
        hand = self._in_hand
        if answer.step <= self._step or (hand is not None and hand.committed):
            return
        if hand is None or hand.plan.step != answer.step or hand.voted is not True:
            raise SimulationError(f"{self.name} at {self.world.now:.3f} s: step {answer.step} committed without this rank's vote")
        hand.committed = True
        self.world.disk.busy_s += self.world.laws.trainer.apply_s
        self.after(self.world.laws.trainer.apply_s, lambda: self._apply(hand))

    def _apply(self, hand: InHand) -> None:
        disk = self.world.disk
        self._step, self._digest, self._in_hand = hand.plan.step, hand.digest, None
        disk.trained.setdefault(self._step, []).append(hand.training)
        disk.last_step_at = self.world.now
        if self._step % self.config["stages"]["actor_train"]["checkpoint_every"] == 0:
            self._save()
        self._announce()

    def _save(self) -> None:
        self.world.disk.checkpoints[self._step] = self._digest
        self.send(wire.CheckpointSaved(step=self._step))

    def _announce(self) -> None:
        tensors = (TensorInfo("weights", "F32", (1,), self._digest),)
        version = Version(lineage=self._lineage, number=self._step, digest=self._digest, location="", tensors=tensors)
        fields = {"newest_version": self._step, "lineage": self._lineage, "weights": self._digest}
        self.commit(puts=[Put("versions", version, fields)])


def read_samples(plan: wire.Plan, frames: Sequence[Frame]) -> list[Sample]:
    """The plan's samples; raises SimulationError where plan and samples do not fit each other."""
    samples, start = [], 0
    for header in plan.samples:
        samples.append(decode_record(Sample, frames[start : start + len(header.frames)]))
        start += len(header.frames)
    rewards = [reward for group in plan.rewards for reward in group.rewards]
    denominator = sum(int(sample.loss_mask.sum()) for sample in samples)
    if start != len(frames) or rewards != [sample.reward for sample in samples] or plan.token_denominator != denominator:
        raise SimulationError(f"plan {plan.step}: frames, rewards or denominator are not those of its samples")
    return samples


def training_of(plan: wire.Plan, samples: Sequence[Sample]) -> Training:
    """Lags of the tokens that a plan trains."""
    lags: Counter[int] = Counter()
    masked = 0
    for sample in samples:
        for span in sample.sample_spans:
            if span.version < plan.oldest_allowed_version:
                masked += span.end - span.start
            else:
                lags[plan.step - 1 - span.version] += span.end - span.start
    return Training(tuple(header.ticket or 0 for header in plan.samples), lags, masked)


class FakeWeightSync(FakeClient):
    """Verifies versions one by one and orders their install."""

    role: ClassVar[Role] = Role.WEIGHT_SYNC

    def start(self) -> None:
        self._held: list[Delivery] = []

    def ready(self, hello: wire.Hello) -> wire.Hello:
        return replace(hello, windows={"versions": 4})

    def drained(self) -> bool:
        return not self._held

    def deliver(self, delivery: Delivery) -> None:
        self._held.append(delivery)
        self.after(self.world.laws.verify_s(self.rng), lambda: self._verified(delivery))

    def _verified(self, delivery: Delivery) -> None:
        if delivery not in self._held:
            return
        self._held.remove(delivery)
        version = decode_record(Version, delivery.frames)
        install = Install(lineage=version.lineage, number=version.number, digest=version.digest, location="", tensors=version.tensors)
        fields = {"newest_version": version.number, "lineage": version.lineage, "weights": version.digest}
        self.commit(acks=[delivery.lease], puts=[Put("installs", install, fields)])

    def order(self, message: wire.BrokerMessage, frames: Sequence[Frame]) -> None:
        if isinstance(message, wire.Abort):
            self._held = [delivery for delivery in self._held if delivery.lease != message.lease]
