"""Reward and reference as laws: episodes in, scored samples out; scored samples in, samples out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from schemas import messages as wire
from schemas.codec import Frame, decode_record
from schemas.edges import Role
from schemas.header import Header
from schemas.records import Episode, Sample, no_logprobs
from tools.sim.clients import Delivery, FakeClient, Put

CARRIED = (
    *("ticket", "group", "member", "attempt", "purpose", "new_tokens", "trainable_tokens"),
    *("oldest_version", "newest_version", "truncated", "reward"),
)
WINDOW = 64


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
