"""One moment of a run as the rules look at it: the state, the time, and how long a wait may be before it is worth a word."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from broker.core.state import Client, Lease, State
from schemas.edges import Role

USUAL_TIMES = 5.0
"""What takes so many times as long as it usually does is late, however long that is."""


class Severity(StrEnum):
    """How bad it is, worst first."""

    FAILED = "failed"
    """The run cannot go on."""
    STALL = "stall"
    """Nothing moves because of it."""
    TROUBLE = "trouble"
    """Something is wrong, the rest goes on."""
    NOTICE = "notice"
    """Worth knowing."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, in one line. `since_s`: seconds for which it has been so; `subject`: the process it is about."""

    rule: str
    severity: Severity
    what: str
    since_s: float = 0.0
    subject: str = ""
    advice: str = ""


class Seen(Struct, frozen=True, kw_only=True):
    """What a rule saw; the table adds its name and how bad it is."""

    what: str
    since_s: float = 0.0
    subject: str = ""
    advice: str = ""


class Scene:
    """Read by all rules; changes nothing."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.patience_s = state.settings.stall_notice_s

    @property
    def stalled_s(self) -> float:
        """Seconds since anything moved."""
        return max(0.0, self.now - self.state.progress_at)

    @property
    def stalled(self) -> bool:
        """Nothing moved for as long as the run waits before it says so."""
        return self.stalled_s >= self.patience_s

    def clients(self, role: Role | str) -> list[Client]:
        """All that ever said hello as this role."""
        return [client for client in self.state.clients.values() if client.role == role]

    def working(self, role: Role | str) -> list[Client]:
        """Those that are ready and heard of."""
        return [client for client in self.clients(role) if client.connected and client.ready and not client.suspect]

    def late_after_s(self, usual_s: float | None) -> float:
        """From when on something is late."""
        return max(self.patience_s, USUAL_TIMES * (usual_s or 0.0))

    @cached_property
    def overdue(self) -> list[Lease]:
        """Leases that are held for much longer than is usual on their queue by clients that are heard of, oldest first."""
        state = self.state
        limits = {name: self.late_after_s(queue.service_s) for name, queue in state.queues.items()}
        late = [lease for lease in state.leases.values() if self.now - lease.granted_at > limits[lease.queue] and self._counts(lease)]
        return sorted(late, key=lambda lease: lease.granted_at)

    def _counts(self, lease: Lease) -> bool:
        """A ticket is held for a whole session: late only while its first turn has not come. A silent holder has a rule of its own."""
        client = self.state.clients.get(lease.client)
        if client is None or client.suspect or not client.connected:
            return False
        return lease.queue != "tickets" or self.ticket_of(lease) not in self.state.sessions

    def ticket_of(self, lease: Lease) -> int:
        """The ticket whose record is under lease; 0 where it has none."""
        return self.state.messages[lease.message].header.ticket or 0


def seconds(value: float) -> str:
    """Example: `seconds(2.34) == "2.3 s"`, `seconds(75.0) == "75 s"`."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def usual(value: float | None) -> str:
    """What is usual, in brackets; nothing where it is not known yet."""
    return "" if value is None else f" (usual: {seconds(value)})"
