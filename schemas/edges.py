"""The loop's edges, once: which queue carries which record from whom to whom, and how it is delivered.

Nothing else in the project states an edge: the broker checks puts and leases against this table, stages derive their
windows from it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Role(StrEnum):
    """What a process is for."""

    ENV = "env"
    ROLLOUT = "rollout"
    REWARD = "reward"
    REFERENCE = "reference"
    ACTOR_TRAIN = "actor-train"
    WEIGHT_SYNC = "weight-sync"
    HOST = "host"
    OBSERVER = "observer"


class Delivery(StrEnum):
    """How a queue's records reach their consumers."""

    FAIR = "fair"
    """To the consumer that holds fewest, by credit."""
    PLACED = "placed"
    """To the replica that the placement policy names."""
    KEYED = "keyed"
    """To the env process that owns the session."""
    PLANNED = "planned"
    """With the step plan that names them."""
    EACH = "each"
    """To every replica."""


class Edge(Struct, frozen=True, kw_only=True):
    """One queue. `producer` is None where the broker itself produces."""

    queue: str
    producer: Role | None
    consumers: tuple[Role, ...]
    record: str
    delivery: Delivery
    of_ticket: bool = True
    """Its records belong to a ticket: their room was charged at admission, so a put is never refused for room."""


EDGES: dict[str, Edge] = {
    edge.queue: edge
    for edge in (
        Edge(queue="tickets", producer=None, consumers=(Role.ENV,), record="ticket", delivery=Delivery.FAIR),
        Edge(queue="turns", producer=Role.ENV, consumers=(Role.ROLLOUT,), record="turn", delivery=Delivery.PLACED),
        Edge(queue="actions", producer=Role.ROLLOUT, consumers=(Role.ENV,), record="action", delivery=Delivery.KEYED),
        Edge(queue="episodes", producer=Role.ENV, consumers=(Role.REWARD,), record="episode", delivery=Delivery.FAIR),
        Edge(queue="scored", producer=Role.REWARD, consumers=(Role.REFERENCE,), record="sample", delivery=Delivery.FAIR),
        Edge(queue="samples", producer=Role.REFERENCE, consumers=(Role.ACTOR_TRAIN,), record="sample", delivery=Delivery.PLANNED),
        Edge(queue="versions", producer=Role.ACTOR_TRAIN, consumers=(Role.WEIGHT_SYNC,), record="version", delivery=Delivery.FAIR,
             of_ticket=False),
        Edge(queue="installs", producer=Role.WEIGHT_SYNC, consumers=(Role.ROLLOUT, Role.REFERENCE), record="install",
             delivery=Delivery.EACH, of_ticket=False),
    )
}  # fmt: skip
"""Edges by queue, in the order of the loop."""

SLOT_ROLES = (Role.ROLLOUT, Role.REFERENCE, Role.ACTOR_TRAIN)
"""Roles that compute on a slot; all others share the machine's cores."""

STAGES = (Role.ENV, Role.ROLLOUT, Role.REWARD, Role.REFERENCE, Role.ACTOR_TRAIN, Role.WEIGHT_SYNC)
"""The six stages, in the order of the loop."""
