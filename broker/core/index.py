"""What rules would else search the whole state for: who has room, which versions are in use, who holds which leases.

Derived from the state, and no part of it: neither journaled nor in a checkpoint, made anew where it is missing, so a fold that began from a
checkpoint decides as one that began with the run. Kept up to date by `settle`, for the clients that a step touched, and by the few places
that make or end a lease; `violations` compares it with the state.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush, heapreplace

from broker.core.state import READY, Client, Group, Lease, State
from schemas.edges import EDGES, Delivery, Role

FAIR: dict[str, tuple[str, ...]] = {
    role: tuple(edge.queue for edge in EDGES.values() if role in edge.consumers and edge.delivery is Delivery.FAIR) for role in Role
}
"""Queues from which a client of a role is served by credit."""
SLACK = 64
ROLLOUT, ACTOR_TRAIN = Role.ROLLOUT, Role.ACTOR_TRAIN
"""As names of the module: see `state.py`."""


class Line:
    """Consumers that have room, the one that holds fewest first, by name where equal."""

    __slots__ = ("_heap", "held")

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        """Leases held, by consumer."""
        self._heap: list[tuple[int, str]] = []
        """Its least entry that `held` confirms is the first in line; others are left from earlier."""

    def note(self, name: str, held: int) -> None:
        """`name` has room and holds so many."""
        if self.held.get(name) == held:
            return
        self.held[name] = held
        heap = self._heap
        if heap and heap[0][1] == name:  # whoever was first in line just got something: the entry is of no more use
            heapreplace(heap, (held, name))
            return
        heappush(heap, (held, name))
        if len(heap) > 4 * len(self.held) + SLACK:
            self._heap = [(held, name) for name, held in self.held.items()]
            heapify(self._heap)

    def drop(self, name: str) -> None:
        """`name` has no room."""
        self.held.pop(name, None)

    def first(self) -> str | None:
        """Whose turn it is; None where nobody has room."""
        heap, held = self._heap, self.held
        while heap:
            count, name = heap[0]
            if held.get(name) == count:
                return name
            heappop(heap)
        return None


class Index:
    """Of one state, as of the last `settle`."""

    __slots__ = ("_doubted", "_ready", "asked", "fair", "installed", "leases", "newest", "oldest", "replicas", "trainers")

    def __init__(self, state: State) -> None:
        self.fair = {queue: Line() for queues in FAIR.values() for queue in queues}
        self.replicas: dict[int, Line] = {}
        """By version: replicas that may be given a turn."""
        self.installed: dict[str, int] = {}
        """Versions that connected replicas have receipts for, by replica."""
        self.newest: int | None = None
        self.oldest: int | None = None
        self.trainers: dict[str, None] = {}
        """Names that a trainer has or had."""
        self.leases: dict[str, dict[int, None]] = {}
        """Leases by holder, oldest first."""
        self.asked: object = None
        """On what admission was last asked in vain."""
        self._ready: dict[int, None] = {}
        self._doubted: set[int] = set(state.groups)
        """Groups that may have become ready, or not ready any more, since somebody last asked."""
        for lease in state.leases.values():
            self.granted(lease)
        self.settle(state, state.clients)

    def settle(self, state: State, names: set[str] | dict[str, Client]) -> None:
        """Looks at these clients again."""
        for name in names:
            client = state.clients[name]
            if client.role == ROLLOUT:
                self._look_at_replica(client)
            elif client.role == ACTOR_TRAIN:
                self.trainers[name] = None
            for queue in FAIR[client.role]:
                self._look_at(self.fair[queue], client, queue)

    def _look_at(self, line: Line, client: Client, queue: str) -> None:
        held = client.held.get(queue, 0)
        if client.windows.get(queue, 0) > held and client.connected and client.ready and not client.draining and not client.suspect:
            line.note(client.name, held)
        else:
            line.drop(client.name)

    def _look_at_replica(self, client: Client) -> None:
        version = client.installed if client.connected else None
        before = self.installed.get(client.name)
        if version != before:
            self._install(client.name, before, version)
        if version is not None:
            self._look_at(self.replicas[version], client, "turns")

    def _install(self, name: str, before: int | None, version: int | None) -> None:
        if before is not None:
            del self.installed[name]
            self.replicas[before].drop(name)
        if version is not None:
            self.installed[name] = version
            self.replicas.setdefault(version, Line())
        kept = set(self.installed.values())
        if before is not None and before not in kept:
            del self.replicas[before]
        self.newest, self.oldest = max(kept, default=None), min(kept, default=None)

    def took(self, client: Client, queue: str) -> None:
        """A client that had room was given a record: the short way to what `settle` would find."""
        line = self.fair.get(queue)
        if line is None and queue == "turns":
            line = self.replicas[self.installed[client.name]]
        if line is None:
            return
        held = client.held[queue]
        if client.windows[queue] > held:
            line.note(client.name, held)
        else:
            line.drop(client.name)

    def doubt(self, group: Group) -> None:
        """Something happened that the readiness of a group depends on: it is looked at again when somebody asks."""
        self._doubted.add(group.id)

    def ready_groups(self, state: State) -> list[int]:
        """Groups all of whose members are ready and unplanned, oldest first."""
        for number in self._doubted:
            group = state.groups.get(number)
            if group is not None and group.judged and group.step is None and _all_ready(state, group):
                self._ready[number] = None
            else:
                self._ready.pop(number, None)
        self._doubted.clear()
        return [number for number in sorted(self._ready) if number in state.groups]

    def granted(self, lease: Lease) -> None:
        """A lease was made."""
        held = self.leases.get(lease.client)
        if held is None:
            held = self.leases[lease.client] = {}
        held[lease.id] = None

    def ended(self, lease: Lease) -> None:
        """A lease is over."""
        self.leases[lease.client].pop(lease.id, None)

    def leases_of(self, client: str) -> list[int]:
        """What a client holds, oldest first."""
        return list(self.leases.get(client, ()))


def _all_ready(state: State, group: Group) -> bool:
    return all(state.tickets[member].stand is READY for member in group.members)


def index_of(state: State) -> Index:
    """The state's own; made where it has none yet."""
    found: Index | None = state.__dict__.get("index")
    if found is None:
        found = state.__dict__["index"] = Index(state)
    return found


def violations(state: State) -> list[str]:
    """Where the index differs from what a new one says."""
    kept, fresh = index_of(state), Index(state)
    wrong = [f"index of {queue}: {line.held} are noted with room, {fresh.fair[queue].held} have it"
             for queue, line in kept.fair.items() if line.held != fresh.fair[queue].held]  # fmt: skip
    rooms = [{version: line.held for version, line in index.replicas.items()} for index in (kept, fresh)]
    if rooms[0] != rooms[1] or kept.installed != fresh.installed:
        wrong.append(f"index of replicas: {rooms[0]} with room, installed {kept.installed}; it is {rooms[1]}, {fresh.installed}")
    leases = [{client: list(held) for client, held in index.leases.items() if held} for index in (kept, fresh)]
    if leases[0] != leases[1]:
        wrong.append("index of leases: other leases are noted than there are")
    if kept.ready_groups(state) != fresh.ready_groups(state):
        wrong.append(f"index of groups: {kept.ready_groups(state)} are noted as ready, {fresh.ready_groups(state)} are")
    versions = Counter(kept.installed.values())
    if (kept.newest, kept.oldest) != (max(versions, default=None), min(versions, default=None)):
        wrong.append(f"index of versions: {kept.oldest} to {kept.newest} noted, {dict(versions)} are in use")
    return wrong
