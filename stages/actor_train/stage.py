"""The trainer's stage: obeys step plans, votes, and applies what the broker has committed.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| plans | votes, checkpoints, `versions` | a plan, a slot, the commit of its vote | broker |

Promises: weights change only after `StepCommitted`; a checkpoint is durable before it is announced, and announced
before the version made from it is put; after a restart the same plan gives the same weights, bit for bit, on the
same machine. Owns the run's `checkpoints/` and writes into `versions/`. Knows no tasks and no rollouts: a plan
brings all it needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import torch

from schemas.codec import Frame
from schemas.edges import Role
from schemas.errors import ConfigError, InvariantError
from schemas.messages import (
    BrokerMessage,
    CheckpointSaved,
    Fence,
    Grant,
    GrantAsked,
    GrantReleased,
    Plan,
    PlanVoided,
    StepCommitted,
    Voted,
    Welcome,
)
from stages.actor_train.batching import micro_batch
from stages.actor_train.core.metrics import token_metrics
from stages.actor_train.history import History
from stages.actor_train.settings import TrainSettings, train_settings
from stages.actor_train.step import Phase, StepInHand, step_in_hand
from stages.actor_train.worker import Gradient
from stages.service.stage import Delivery, Link, Put, Ready

log = structlog.get_logger(__name__)


class ActorTrain:
    role = Role.ACTOR_TRAIN

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.link: Link
        self.settings: TrainSettings
        self.history: History
        self.grant: int | None = None
        self.in_hand: StepInHand | None = None
        self.unannounced = False
        self.draining = False
        self.idle_since = 0.0
        self.waited_s = 0.0
        self.computed_s = 0.0

    # --- birth and death

    def start(self, welcome: Welcome, link: Link) -> None:
        self.link = link
        self.settings = train_settings(welcome.config)
        if not Path(link.run_directory).is_dir():
            raise ConfigError(
                f"the run directory {link.run_directory} is not on this machine, and the trainer writes its checkpoints there; "
                "run actor-train beside the broker, or mount that directory here under the same path"
            )
        self.history = History(self.settings, Path(link.run_directory))
        self.unannounced = True
        self.idle_since = self.clock()

    def hello(self) -> Ready:
        """Of a new process, `resume_step` is that of its checkpoint; after a reconnect it is what memory holds, which is not lost."""
        return Ready(
            resume_step=self.history.step,
            step_in_hand=None if self.in_hand is None else self.in_hand.plan.step,
            grants=() if self.grant is None else (self.grant,),
        )

    def drained(self) -> bool:
        """Only asked once a drain was ordered: from then on, `work` saves what no checkpoint holds yet."""
        self.draining = True
        return self.in_hand is None and self.history.is_saved()

    def close(self) -> None:
        """Nothing to free, and nothing to save: what is not in a checkpoint is made again. May come before `start` ended."""
        self.in_hand = None

    # --- orders

    def deliver(self, delivery: Delivery) -> None:
        raise InvariantError(f"actor-train was handed a record of queue {delivery.header.queue}: it takes plans only")

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        match message:
            case Plan():
                self._take(message, frames)
            case Grant():
                self._granted(message)
            case Fence():
                self._fenced(message)
            case StepCommitted():
                self._committed(message)
            case PlanVoided():
                self._voided(message)
            case _:
                log.debug("order has no meaning for this stage", order=type(message).__name__)

    def _take(self, plan: Plan, frames: Sequence[Frame]) -> None:
        if plan.step != self.history.step + 1:
            raise InvariantError(
                f"the broker planned step {plan.step}, but the weights have taken {self.history.step} steps:"
                f" only step {self.history.step + 1} can be applied to them"
            )
        if self.in_hand is not None and self.in_hand.plan == plan:
            self._answer_again(self.in_hand)
            return
        if self.in_hand is not None:
            self._forget()
        now = self.clock()
        try:
            self.in_hand = step_in_hand(
                plan,
                frames,
                micro_batch_tokens=self.settings.micro_batch_tokens,
                with_reference=self.settings.loss.kl_coefficient > 0,
                now=now,
            )
        except InvariantError as error:  # a crash would meet the same samples after each restart
            log.error("plan_cannot_be_used", step=plan.step, error=str(error))
            self.link.send(Voted(step=plan.step, ok=False, reason=str(error)))
            return
        self._wait(self.in_hand, "time/wait_for_plan_s", now - self.idle_since)
        self._ask_for_slot(self.in_hand)

    def _answer_again(self, step: StepInHand) -> None:
        """After a reconnect the broker sends a plan that was under way once more."""
        if step.phase is Phase.VOTED:
            self._vote(step)

    def _ask_for_slot(self, step: StepInHand) -> None:
        if self.grant is None:
            self.link.send(GrantAsked())
        else:
            self._compute(step)

    def _granted(self, grant: Grant) -> None:
        step = self.in_hand
        if self.grant is not None or step is None or step.phase is not Phase.PLANNED:
            if grant.grant != self.grant:
                self.link.send(GrantReleased(grant=grant.grant))
            return
        self.grant = grant.grant
        self._compute(step)

    def _compute(self, step: StepInHand) -> None:
        self._wait(step, "time/wait_for_slot_s", step.move(Phase.COMPUTING, self.clock()))

    def _fenced(self, fence: Fence) -> None:
        if fence.grant != self.grant:
            return
        self.grant = None
        if self.in_hand is not None and self.in_hand.phase is Phase.COMPUTING:
            self.in_hand.spend("time/compute_s", self.in_hand.move(Phase.PLANNED, self.clock()))
            self.link.send(GrantAsked())

    def _committed(self, answer: StepCommitted) -> None:
        step = self.in_hand
        if answer.step <= self.history.step:
            return  # the recorded answer, given again after a reconnect
        if step is None or step.plan.step != answer.step:
            raise InvariantError(f"step {answer.step} was committed, but no plan of that step is in hand (at {self.history.step})")
        if step.phase in (Phase.PLANNED, Phase.COMPUTING):
            step.answered_early = True
        elif step.phase is Phase.VOTED:
            self._accept(step)

    def _accept(self, step: StepInHand) -> None:
        if not step.ok:
            raise InvariantError(f"step {step.plan.step} was committed against this rank's vote")
        self._wait(step, "time/wait_for_commit_s", step.move(Phase.COMMITTED, self.clock()))

    def _voided(self, voided: PlanVoided) -> None:
        if self.in_hand is not None and self.in_hand.plan.step == voided.step:
            self._forget()

    def _forget(self) -> None:
        """Drops the step in hand and its gradient; what it held of a slot goes back."""
        self.history.trainer.drop()
        self.in_hand = None
        self.idle_since = self.clock()
        self._release(0.0)

    # --- work

    def work(self) -> bool:
        """One micro-batch, or one optimizer step, or one version to write."""
        step = self.in_hand
        if self.unannounced:
            self._announce()
        elif step is not None and step.phase is Phase.COMPUTING:
            self._compute_some(step)
        elif step is not None and step.phase is Phase.COMMITTED:
            self._apply(step)
        elif self.draining and step is None and not self.history.is_saved():
            self.history.save()
            self.link.send(CheckpointSaved(step=self.history.step))
        else:
            return False
        return True

    def _compute_some(self, step: StepInHand) -> None:
        if not step.computed:
            batch = micro_batch(step.batches[step.next_batch], self.settings.device)
            step.sums.add(self.history.trainer.accumulate(batch, step.plan.token_denominator))
            step.next_batch += 1
        if step.computed:
            self._conclude(step)

    def _conclude(self, step: StepInHand) -> None:
        gradient = self.history.trainer.clip()
        step.ok = gradient.finite and math.isfinite(step.sums.loss)
        step.metrics |= self._step_metrics(step, gradient)
        spent = step.move(Phase.VOTED, self.clock())
        step.spend("time/compute_s", spent)
        self.computed_s += spent
        if not step.ok:
            self.history.trainer.drop()
        self._vote(step)
        self._release(step.metrics["time/compute_s"])
        if step.answered_early:
            self._accept(step)

    def _step_metrics(self, step: StepInHand, gradient: Gradient) -> dict[str, float]:
        return token_metrics(step.sums, step.plan.token_denominator) | {
            "optim/grad_norm": gradient.norm,
            "optim/learning_rate": self.settings.learning_rate_at(step.plan.step),
        }

    def _vote(self, step: StepInHand) -> None:
        finite = {name: value for name, value in step.metrics.items() if math.isfinite(value)}
        reason = "" if step.ok else f"loss {step.sums.loss}, gradient norm {step.metrics['optim/grad_norm']}: not finite"
        self.link.send(Voted(step=step.plan.step, ok=step.ok, metrics=finite, reason=reason))

    def _release(self, busy_s: float) -> None:
        if self.grant is None:
            return
        if self.settings.device.startswith("cuda"):
            torch.cuda.empty_cache()
        self.link.send(GrantReleased(grant=self.grant, busy_seconds=busy_s))
        self.grant = None

    def _apply(self, step: StepInHand) -> None:
        """The order is what makes a crash safe: weights, checkpoint durable, checkpoint announced; then the version is put."""
        self.history.advance(step.plan.step, step.plan.lineage)
        self.in_hand, self.unannounced = None, True
        if self.history.is_due():
            self._save(step.metrics["time/wait_for_commit_s"], since=step.since)
        self.idle_since = self.clock()

    def _save(self, waited_s: float, since: float) -> None:
        self.history.save()
        late = {"time/wait_for_commit_s": waited_s, "time/apply_s": self.clock() - since}
        self.link.send(CheckpointSaved(step=self.history.step, metrics=late))

    def _announce(self) -> None:
        """Puts the version that the weights are: the broker plans the next step once it has it."""
        version = self.history.version()
        fields = {"newest_version": version.number, "lineage": version.lineage, "weights": version.digest}
        self.link.commit(puts=[Put(queue="versions", record=version, fields=fields)])
        self.unannounced = False

    # --- what others see

    def _wait(self, step: StepInHand, name: str, seconds: float) -> None:
        step.spend(name, seconds)
        self.waited_s += seconds

    def stats(self) -> dict[str, float]:
        step = self.in_hand
        return {
            "step": float(self.history.step),
            "checkpoint": float(self.history.saved),
            "micro_batches_left": float(len(step.batches) - step.next_batch) if step is not None else 0.0,
            "waited_s": self.waited_s,
            "computed_s": self.computed_s,
        }

    def waiting(self) -> str:
        if self.in_hand is None:
            return f"broker: plan of step {self.history.step + 1}"
        texts = {
            Phase.PLANNED: f"broker: a slot for step {self.in_hand.plan.step}",
            Phase.VOTED: f"broker: the commit of step {self.in_hand.plan.step}",
        }
        return texts.get(self.in_hand.phase, "")

    def wake_fd(self) -> int | None:
        return None
