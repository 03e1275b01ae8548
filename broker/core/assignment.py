"""Where a process goes: a pure rule over hosts and what runs on them.

A slot is for one of them: a rollout replica takes a free one, on the host that has most of them, and waits where there is none. The trainer
takes the last slot of its host; reference takes a free slot on another host, else shares the trainer's by grant. Only the first replica
shares a slot, so that a machine of one slot trains too. All other roles take no slot, and spread over the hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from schemas.edges import SLOT_ROLES, STAGES, Role


class Offer(Struct, frozen=True):
    """A host that is there: its slots in order, and the roles that may run on it."""

    name: str
    slots: tuple[str, ...]
    roles: frozenset[str]


class Place(Struct, frozen=True):
    """Where one process runs."""

    name: str
    role: str
    host: str
    slots: tuple[str, ...] = ()


class Floor:
    """Who stands where, while processes are handed out one by one."""

    def __init__(self, offers: Sequence[Offer], placed: Iterable[Place]) -> None:
        self.offers = offers
        self.free = {offer.name: dict.fromkeys(offer.slots) for offer in offers}
        """By host: its slots that nobody uses, in order."""
        self.roles: Counter[tuple[str, str]] = Counter()
        """Processes by host and role."""
        self.crowd: Counter[str] = Counter()
        """Processes without a slot, by host."""
        self.trainers: dict[str, tuple[str, ...]] = {}
        """Slots of the trainer, by host."""
        self.replicas = 0
        for place in placed:
            self.put(place)

    def put(self, place: Place) -> None:
        """A process stands there; one on a host that is not there counts for nothing."""
        free = self.free.get(place.host)
        if free is None:
            return
        for slot in place.slots:
            free.pop(slot, None)
        self.roles[place.host, place.role] += 1
        self.crowd[place.host] += place.role not in SLOT_ROLES
        self.replicas += place.role == Role.ROLLOUT
        if place.role == Role.ACTOR_TRAIN:
            self.trainers[place.host] = place.slots

    def fitting(self, role: str) -> list[Offer]:
        """Hosts that may run `role`, in the order in which they came."""
        return [offer for offer in self.offers if role in offer.roles]

    def emptiest(self, offers: Sequence[Offer], role: str) -> Offer:
        """The one with fewest of that role, then with fewest processes without a slot."""
        return min(offers, key=lambda offer: (self.roles[offer.name, role], self.crowd[offer.name]))

    def roomiest(self, offers: Sequence[Offer]) -> Offer:
        """The one with most free slots."""
        return max(offers, key=lambda offer: len(self.free[offer.name]))

    def last(self, offer: Offer) -> str:
        """Its last slot, a free one where there is one."""
        return (list(self.free[offer.name]) or list(offer.slots))[-1]


ORDER = (Role.ACTOR_TRAIN, Role.ROLLOUT, Role.REFERENCE, *(role for role in STAGES if role not in SLOT_ROLES))
"""Who chooses first: the trainer is bound to a host, reference takes what the replicas leave."""


def assign(waiting: Iterable[Place], placed: Iterable[Place], offers: Sequence[Offer]) -> list[Place]:
    """The places of those of `waiting` that can have one now, beside the ones that are `placed` (both by name and role)."""
    floor, found, hopeless = Floor(offers, placed), list[Place](), set[str]()
    for process in sorted(waiting, key=lambda process: ORDER.index(Role(process.role))):
        chosen = None if process.role in hopeless else _choose(floor, process.role)
        if chosen is None:
            hopeless.add(process.role)
            continue
        found.append(Place(process.name, process.role, *chosen))
        floor.put(found[-1])
    return found


def spare(placed: Iterable[Place], offers: Sequence[Offer]) -> int:
    """Slots that are free for one more replica each."""
    floor = Floor(offers, placed)
    return sum(len(floor.free[offer.name]) for offer in floor.fitting(Role.ROLLOUT))


Chosen = tuple[str, tuple[str, ...]]


def _choose(floor: Floor, role: str) -> Chosen | None:
    fitting = floor.fitting(role)
    with_slots = [offer for offer in fitting if offer.slots]
    if not fitting:
        return None
    if role not in SLOT_ROLES or not with_slots:  # a host without slots pins nothing
        return floor.emptiest(fitting, role).name, ()
    if role == Role.ACTOR_TRAIN:
        offer = floor.roomiest(with_slots)
        return offer.name, (floor.last(offer),)
    return _for_replica(floor, with_slots) if role == Role.ROLLOUT else _for_reference(floor, with_slots)


def _for_replica(floor: Floor, offers: list[Offer]) -> Chosen | None:
    offer = floor.roomiest(offers)
    free = floor.free[offer.name]
    if free:
        return offer.name, (next(iter(free)),)
    return None if floor.replicas else (offer.name, (offer.slots[0],))


def _for_reference(floor: Floor, offers: list[Offer]) -> Chosen:
    apart = [offer for offer in offers if offer.name not in floor.trainers and floor.free[offer.name]]
    if apart:
        offer = floor.roomiest(apart)
        return offer.name, (next(iter(floor.free[offer.name])),)
    for offer in offers:
        if floor.trainers.get(offer.name):
            return offer.name, floor.trainers[offer.name]
    offer = floor.roomiest(offers)
    return offer.name, (floor.last(offer),)
