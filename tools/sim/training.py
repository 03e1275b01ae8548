"""Actor-train and weight-sync as laws.

Weights are a digest of all that was trained, so that a step which is made again is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import xxhash
from msgspec.structs import replace

from schemas import messages as wire
from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.records import Install, Sample, TensorInfo, Version
from tools.sim.clients import Delivery, FakeClient, Put, SimulationError
from tools.sim.disk import Training

START_DIGEST = "0" * 16


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
