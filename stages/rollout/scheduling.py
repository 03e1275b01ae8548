"""Which waiting turn joins next, and whose KV makes room for it. Pure: no torch, no clock.

One budget of KV positions (`kv_tokens`) covers running and idle sessions. A running turn is charged its context and
its longest possible answer when it joins, so it never has to stop for room. Idle sessions are evicted least recently
used first. The first in line waits for its room and nobody overtakes it: a long turn is late, never starved.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from stages.rollout.engine import SessionKey


@dataclass(order=True)
class _Place:
    rank: float
    arrival: int
    turn_id: int = field(compare=False)


class WaitingLine:
    """Turn ids by priority (greater first), then by arrival."""

    def __init__(self) -> None:
        self._heap: list[_Place] = []
        self._present: set[int] = set()
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._present)

    def __contains__(self, turn_id: int) -> bool:
        return turn_id in self._present

    def add(self, turn_id: int, priority: float) -> None:
        self._arrivals += 1
        self._present.add(turn_id)
        heapq.heappush(self._heap, _Place(-priority, self._arrivals, turn_id))

    def remove(self, turn_id: int) -> None:
        """Its place in the heap is skipped when it comes up."""
        self._present.discard(turn_id)
        self._heap = [place for place in self._heap if place.turn_id != turn_id]
        heapq.heapify(self._heap)

    def first(self) -> int | None:
        return self._heap[0].turn_id if self._heap else None

    def pop(self) -> int:
        turn_id = heapq.heappop(self._heap).turn_id
        self._present.discard(turn_id)
        return turn_id


class KeyValueBudget:
    """Charges in KV positions. `charges` of running turns by id, `idle` positions by session, oldest use first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._charges: dict[int, int] = {}
        self._idle: OrderedDict[SessionKey, int] = OrderedDict()
        self._charged = self._idling = 0

    @property
    def idle_tokens(self) -> int:
        return self._idling

    def has_room(self, charge: int) -> bool:
        """Whether a turn fits beside the running ones; idle KV yields."""
        return self._charged + charge <= self.limit

    def to_evict(self, charge: int) -> list[SessionKey]:
        """The idle sessions, least recently used first, whose KV must go for `charge` more positions to fit."""
        excess = self._charged + self._idling + charge - self.limit
        chosen = []
        for key, positions in self._idle.items():
            if excess <= 0:
                break
            chosen.append(key)
            excess -= positions
        return chosen

    def start(self, turn_id: int, charge: int) -> None:
        self._charges[turn_id] = charge
        self._charged += charge

    def end(self, turn_id: int) -> None:
        self._charged -= self._charges.pop(turn_id)

    def rest(self, key: SessionKey, positions: int) -> None:
        """A session is idle with this much KV, and was used just now."""
        self.wake(key)
        if positions:
            self._idle[key] = positions
            self._idling += positions

    def wake(self, key: SessionKey) -> None:
        """A session's idle KV is no longer idle, or no longer there."""
        self._idling -= self._idle.pop(key, 0)


def chunk_sizes(pending: list[int], budget: int, least: int) -> list[int]:
    """How many pending tokens each joining row computes in this step.

    The budget is shared evenly, but a row gets `least` at any rate: short observations always join in one step, and the
    padded area of the chunks stays within max(budget, rows x least).
    """
    cap = max(least, budget // max(1, len(pending)))
    return [min(count, cap) for count in pending]
