"""The reference stage: scored samples in, the same samples with `ref_logprobs` out.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| `scored` | `samples` | samples, a slot | reward, broker |

Promises: a slot is asked for only over samples that are held; each sample is acknowledged with its result in a
commit of its own, so that a lease that was lost in between spoils no neighbour's work; header and record go on
unchanged but for the log-probs. The model is the starting model, for good: version 0 is confirmed by digest, every
later install is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.errors import InvariantError
from schemas.header import Header
from schemas.messages import (
    Abort,
    BrokerMessage,
    Fence,
    Grant,
    GrantAsked,
    GrantReleased,
    InstallFailed,
    InstallOrder,
    Receipt,
    Welcome,
)
from schemas.records import Install, Sample
from stages.model.packing import packed_by_length, segments_of
from stages.reference.settings import ReferenceSettings, reference_settings
from stages.reference.worker import FrozenModel
from stages.service.stage import Delivery, Link, Put, Ready

log = structlog.get_logger(__name__)

WINDOW = 64
"""Samples held at a time: enough to fill a batch of short episodes, few enough that a death gives little back."""

CARRIED = (
    *("ticket", "group", "member", "attempt", "purpose", "context_tokens", "new_tokens", "trainable_tokens"),
    *("oldest_version", "newest_version", "reward", "truncated", "priority"),
)
"""Header fields that go on as they came."""


class Reference:
    role = Role.REFERENCE

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.link: Link
        self.settings: ReferenceSettings
        self.model: FrozenModel
        self.held: dict[int, tuple[Header, Sample]] = {}
        """By lease, in the order of arrival."""
        self.granted: list[int] = []
        """Leases that the slot was granted over and that are still to be computed."""
        self.grant: int | None = None
        self.asked = False
        self.installed: int | None = None
        self.busy_s = 0.0
        self.computed_s = 0.0
        self.samples = 0

    def start(self, welcome: Welcome, link: Link) -> None:
        self.link = link
        self.settings = reference_settings(welcome.config)
        self.model = FrozenModel(self.settings)

    def hello(self) -> Ready:
        grants = () if self.grant is None else (self.grant,)
        return Ready(windows={"scored": WINDOW}, installed=self.installed, grants=grants)

    def deliver(self, delivery: Delivery) -> None:
        """Raises WireError where the sample does not fit together: at the door, where it costs only itself."""
        sample = delivery.record(Sample)
        segments_of(sample)
        self.held[delivery.lease] = (delivery.header, sample)

    def order(self, message: BrokerMessage, frames: Sequence[Frame]) -> None:
        match message:
            case Grant():
                self._granted(message)
            case Fence():
                self._fenced(message)
            case Abort():
                self.held.pop(message.lease, None)
            case InstallOrder():
                self._install(decode_record(Install, frames))
            case _:
                log.debug("order has no meaning for this stage", order=type(message).__name__)

    def _granted(self, grant: Grant) -> None:
        self.asked = False
        if self.grant is not None or not self.held:
            if grant.grant != self.grant:
                self.link.send(GrantReleased(grant=grant.grant))
            return
        self.grant, self.granted, self.busy_s = grant.grant, list(self.held), 0.0

    def _fenced(self, fence: Fence) -> None:
        if fence.grant == self.grant:
            self.grant, self.granted = None, []

    def _install(self, install: Install) -> None:
        if install.number != 0:
            reason = "refreshes are not configured: the reference stays at the starting model"
            self.link.send(InstallFailed(number=install.number, reason=reason))
            return
        digest = self.model.digest()
        if digest != install.digest:
            reason = f"the starting model here hashes to {digest}, version 0 to {install.digest}: other files or dtype"
            self.link.send(InstallFailed(number=0, reason=reason))
            return
        self.installed = 0
        self.link.send(Receipt(lineage=install.lineage, number=0, digest=digest))

    def work(self) -> bool:
        """One packed batch under a grant; or asks for one."""
        if self.grant is None:
            if self.held and not self.asked:
                self.asked = True
                self.link.send(GrantAsked())
            return False
        self.granted = [lease for lease in self.granted if lease in self.held]
        if self.granted:
            self._compute(self._next_batch())
        if not self.granted:
            self._release()
        return True

    def _next_batch(self) -> list[int]:
        """Leases of the longest samples first: batches of like length waste little on padding."""
        lengths = [len(self.held[lease][1].tokens) for lease in self.granted]
        return [self.granted[index] for index in packed_by_length(lengths, self.settings.batch_tokens)[0]]

    def _compute(self, leases: Sequence[int]) -> None:
        began = self.clock()
        scores = self.model.logprobs([self.held[lease][1] for lease in leases])
        for lease, score in zip(leases, scores, strict=True):
            header, sample = self.held.pop(lease)
            self.link.commit(acks=[lease], puts=[_put(header, msgspec.structs.replace(sample, ref_logprobs=score))])
        done = set(leases)
        self.granted = [lease for lease in self.granted if lease not in done]
        self.samples += len(leases)
        self.busy_s += self.clock() - began
        self.computed_s += self.clock() - began

    def _release(self) -> None:
        if self.grant is None:
            raise InvariantError("reference gives back a slot that it does not hold")
        self.link.send(GrantReleased(grant=self.grant, busy_seconds=self.busy_s))
        self.grant = None

    def stats(self) -> dict[str, float]:
        return {"held": float(len(self.held)), "samples": float(self.samples), "computed_s": self.computed_s}

    def waiting(self) -> str:
        if not self.held:
            return "reward: scored samples"
        return "" if self.grant is not None else f"broker: a slot for {len(self.held)} samples"

    def drained(self) -> bool:
        return not self.held and self.grant is None

    def close(self) -> None:
        self.held.clear()

    def wake_fd(self) -> int | None:
        return None


def _put(header: Header, sample: Sample) -> Put:
    fields: dict[str, Any] = {name: getattr(header, name) for name in CARRIED}
    return Put(queue="samples", record=sample, fields=fields)
