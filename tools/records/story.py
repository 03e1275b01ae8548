"""The life of one thing across all queues: which facts belong to it, and what they amount to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from schemas.errors import ConfigError
from tools.records.lives import Fact
from tools.records.words import harmless

KINDS = ("ticket", "session", "group", "step", "version")
RELEASES = ("acked", "try_failed", "lost", "withdrawn")
"""How a lease ends."""


class Subject(Struct, frozen=True, kw_only=True):
    """Whose life: `ticket:7`, `session:7.1`, `group:3`, `step:4`, `version:2`."""

    kind: str
    id: int
    attempt: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}" + (f".{self.attempt}" if self.attempt is not None else "")


def subject_of(text: str) -> Subject:
    """Raises ConfigError where it names nothing of that kind."""
    kind, _, rest = text.partition(":")
    number, _, attempt = rest.partition(".")
    if kind not in KINDS or not number.isdecimal() or (attempt and (kind != "session" or not attempt.isdecimal())):
        raise ConfigError(f"{text!r}: wanted is one of ticket:7, session:7.1, group:3, step:4, version:2")
    return Subject(kind=kind, id=int(number), attempt=int(attempt) if attempt else None)


class Scope(Struct, kw_only=True):
    """What belongs to a subject. `last`: the entry by which all of it was known to the index."""

    subject: Subject
    tickets: set[int] = field(default_factory=set)
    groups: frozenset[int] = frozenset()
    first: int = 0
    last: int = 0


class Collector:
    """Takes facts in order and keeps those of its scope. `is_over`: nothing more can come."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.facts: list[Fact] = []
        self._open = set(scope.tickets)
        self._steps: set[int] = {scope.subject.id} if scope.subject.kind == "step" else set()
        """Steps of this story that no checkpoint holds yet."""

    def take(self, fact: Fact) -> None:
        """Keeps it, or not."""
        if fact.kind == "issued" and self.scope.subject.kind == "group" and fact.group == self.scope.subject.id:
            self.scope.tickets.add(fact.ticket or 0)  # one that nobody came to play
            self._open.add(fact.ticket or 0)
        if not self._touches(fact):
            return
        self.facts.append(fact)
        if fact.kind == "ended":
            self._open.discard(fact.ticket or 0)
        elif fact.kind == "committed" and fact.step is not None and self.scope.subject.kind != "version":
            self._steps.add(fact.step)
        elif fact.kind == "checkpoint":
            self._steps = {step for step in self._steps if step > (fact.step or 0)}

    @property
    def is_over(self) -> bool:
        """Every ticket has ended; of a version that cannot be said before the journal's end."""
        return bool(self.scope.tickets) and not self._open and not self._steps

    def _touches(self, fact: Fact) -> bool:
        subject = self.scope.subject
        if subject.kind == "version":
            return fact.version == subject.id
        if fact.ticket is not None:
            return fact.ticket in self.scope.tickets and (subject.attempt is None or fact.attempt in (None, subject.attempt))
        if fact.kind == "checkpoint":
            return any(step <= (fact.step or 0) for step in self._steps)
        if fact.kind == "judged":
            return fact.group in self.scope.groups
        if subject.kind == "step" and fact.version == subject.id:
            return True
        return not self.scope.tickets.isdisjoint(fact.tickets)


class QueueSum(Struct, kw_only=True):
    """What a story amounts to on one queue: deliveries and puts, seconds in the queue and under leases, leases that came to nothing."""

    puts: int = 0
    deliveries: int = 0
    waited_s: float = 0.0
    held_s: float = 0.0
    lost: int = 0


class Summary(Struct, kw_only=True):
    """A story in figures."""

    began: float
    ended: float
    tickets: int
    attempts: int
    endings: dict[str, int]
    queues: dict[str, QueueSum]


def summary(facts: Sequence[Fact]) -> Summary:
    """Raises ValueError for an empty story."""
    queues: dict[str, QueueSum] = defaultdict(QueueSum)
    endings: dict[str, int] = defaultdict(int)
    for fact in facts:
        if fact.kind == "ended":
            endings[fact.detail] += 1
        if not fact.queue:
            continue
        of = queues[fact.queue]
        of.puts += fact.kind in ("put", "issued")
        of.deliveries += fact.kind == "leased"
        of.waited_s += fact.seconds or 0.0 if fact.kind == "leased" else 0.0
        of.held_s += fact.seconds or 0.0 if fact.kind in RELEASES else 0.0
        of.lost += fact.kind in ("lost", "try_failed")
    sessions = {(fact.ticket, fact.attempt) for fact in facts if fact.ticket is not None and fact.attempt is not None}
    tickets = {fact.ticket for fact in facts if fact.ticket is not None}
    return Summary(began=min(fact.at for fact in facts), ended=max(fact.at for fact in facts), tickets=len(tickets), attempts=len(sessions),
                   endings=dict(endings), queues=dict(queues))  # fmt: skip


def lines(subject: Subject, facts: Sequence[Fact]) -> Iterator[str]:
    """The story as a table, and what it amounts to."""
    yield f"{'entry':>10}  {'at':>11}  {'session':>9}  {'what':<14}  {'queue':<9}  {'who':<16}  {'took':>9}  "
    yield from (_line(fact) for fact in facts)
    yield ""
    yield from _summary_lines(subject, facts, summary(facts))


def _line(fact: Fact) -> str:
    session = "" if fact.ticket is None else f"{fact.ticket}" + (f".{fact.attempt}" if fact.attempt is not None else "")
    took = f"{fact.seconds:.4f} s" if fact.seconds is not None else ""
    return (f"{fact.number:>10}  {fact.at:>9.4f} s  {session:>9}  {fact.kind.replace('_', ' '):<14}  {fact.queue:<9}  {fact.client:<16}  "
            f"{took:>9}  {_detail(fact)}").rstrip()  # fmt: skip


def _detail(fact: Fact) -> str:
    shown = [harmless(fact.detail)] if fact.detail else []
    for name in ("turn", "tokens", "reward", "step", "version", "lease"):
        value = getattr(fact, name)
        if value is not None:
            shown.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(shown)


def _became(subject: Subject, facts: Sequence[Fact], of: Summary) -> str:
    if subject.kind == "version":
        replicas = sorted({fact.client for fact in facts if fact.kind == "installed"})
        return f"installed on {', '.join(replicas)}" if replicas else "installed nowhere"
    return ", ".join(f"{ending} ×{count}" if count > 1 else ending for ending, count in of.endings.items()) or "not ended"


def _summary_lines(subject: Subject, facts: Sequence[Fact], of: Summary) -> Iterator[str]:
    tickets = f", {of.tickets} tickets in {of.attempts} sessions" if of.tickets else ""
    yield f"{subject}: {of.began:.3f} to {of.ended:.3f} s ({of.ended - of.began:.3f} s){tickets}"
    yield f"became of it: {_became(subject, facts, of)}"
    for queue, part in of.queues.items():
        yield (f"  {queue:<9} {part.puts:>6} put, {part.deliveries:>6} delivered, {part.waited_s:9.4f} s waiting in the queue, "
               f"{part.held_s:9.4f} s under leases" + (f", {part.lost} came to nothing" if part.lost else ""))  # fmt: skip


def usage_lines(version: int, counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    """In how many records a version's tokens stand."""
    shown = ", ".join(f"{queue} {count:,}" for queue, count in counts)
    yield f"records with tokens of version {version}: {shown or 'none'}"
