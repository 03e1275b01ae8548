"""What the broker did, event by event: the real core is stepped, and what changed is said as facts.

Pure. Owns the state it steps. Promises: a fact is derived from the core's own actions and state, never from a second opinion about what
an event should have led to; an event that the core refused leaves a `refused` fact alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from broker.core.actions import Action, Keep, Note, Reply, Send, Store
from broker.core.events import Event, Received
from broker.core.state import State
from broker.core.step import step
from schemas.header import Header
from schemas.messages import CheckpointSaved, Commit, Deliver, InstallOrder, Refuse
from tools.records.tables import StepRow


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that happened, in entry `number` at `at` (seconds of the broker's clock). Fields without a meaning are absent."""

    number: int
    at: float
    kind: str
    """issued leased acked put refused try_failed lost withdrawn judged planned committed voided checkpoint ended ordered installed
    install_failed adopted lineage evaluation."""
    ticket: int | None = None
    attempt: int | None = None
    group: int | None = None
    member: int | None = None
    turn: int | None = None
    step: int | None = None
    version: int | None = None
    queue: str = ""
    client: str = ""
    lease: int | None = None
    seconds: float | None = None
    """leased: in the queue; acked, try_failed, lost, withdrawn: under the lease; committed: from the plan."""
    reward: float | None = None
    tokens: int | None = None
    detail: str = ""
    tickets: tuple[int, ...] = ()
    """planned, committed, voided: those of the step."""


class Hold(Struct, frozen=True, gc=False):
    """A lease in force."""

    queue: str
    client: str
    granted_at: float
    header: Header
    attempt: int | None


class Lives:
    """Steps a state and tells the facts. Made from any state: a run's first, a checkpoint's, a snapshot's."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._holds: dict[int, Hold] = {}
        for lease in state.leases.values():
            header = state.messages[lease.message].header
            self._holds[lease.id] = Hold(lease.queue, lease.client, lease.granted_at, header, self._attempt(header))
        self._members = {ticket.id: (ticket.group, ticket.member, ticket.purpose) for ticket in state.tickets.values()}
        self._trained = {ticket: step.step for step in state.steps.values() if step.committed for ticket in step.tickets}
        self._endings = self._counts()

    def _attempt(self, header: Header) -> int | None:
        ticket = self.state.tickets.get(header.ticket or 0)
        return ticket.attempt if ticket is not None else header.attempt

    def step(self, event: Event, now: float, number: int, *, is_brief: bool = False) -> tuple[list[Action], list[Fact]]:
        """Hands the event to the core; its actions, and the facts in order: `is_brief` leaves out `put` and `leased`, two of three."""
        self._now, self._number, self._is_brief = now, number, is_brief
        actions = step(self.state, event, now)
        facts = list(self._facts(event, actions))
        return actions, facts

    def _fact(self, kind: str, header: Header | None = None, **fields: object) -> Fact:
        if header is not None:
            of = {"ticket": header.ticket, "attempt": header.attempt, "group": header.group, "member": header.member, "turn": header.turn}
            fields = {**of, **fields}
            if header.queue in ("versions", "installs"):
                fields["version"] = header.newest_version
        return Fact(number=self._number, at=self._now, kind=kind, **fields)  # type: ignore[arg-type]

    def _facts(self, event: Event, actions: list[Action]) -> Iterator[Fact]:
        if isinstance(event, Received):
            if isinstance(event.message, Commit):
                yield from self._commit(event.sender.rpartition("/")[0], event.message, actions)
            elif isinstance(event.message, CheckpointSaved):
                yield self._fact("checkpoint", step=event.message.step, client=event.sender.rpartition("/")[0])
        failed: dict[int, str] = {}
        for action in actions:
            if isinstance(action, Send):
                yield from self._sent(action)
            elif isinstance(action, Note):
                if action.kind == "ticket_failed":
                    failed[int(action.numbers["ticket"])] = f"failed({action.numbers['boundary']}): {action.numbers['reason']}"
                yield from self._noted(action)
            elif isinstance(action, Store):
                yield self._issued(action)
        yield from self._withdrawn()
        yield from self._ended(failed)

    def plan(self, number: int, entry: int, at: float) -> StepRow | None:
        """A step plan as it stands, made in `entry`."""
        plan = self.state.steps.get(number)
        if plan is None:
            return None
        groups = tuple((group.group, group.rewards) for group in plan.rewards)
        return StepRow(step=plan.step, number=entry, at=at, oldest_allowed=plan.oldest_allowed, tickets=plan.tickets, groups=groups)

    # --- commits ------------------------------------------------------------------------------------------------------------

    def _commit(self, client: str, commit: Commit, actions: list[Action]) -> Iterator[Fact]:
        kept = any(isinstance(action, Keep) for action in actions)
        if not kept and commit.puts:
            yield from self._refused(client, commit, actions)
            return
        for lease in commit.acks:
            yield from self._let_go("acked", lease)
        for failure in commit.fails:
            yield from self._let_go("try_failed", failure.lease, f"{failure.boundary}: {failure.reason}")
        for header in commit.puts if not self._is_brief else ():
            yield self._fact("put", header, queue=header.queue, client=client, reward=header.reward, tokens=header.new_tokens,
                             detail=header.record)  # fmt: skip

    def _refused(self, client: str, commit: Commit, actions: list[Action]) -> Iterator[Fact]:
        """By the core's answer; without one it is a copy of what was taken before, or came behind a hole."""
        answers = [action.message for action in actions if isinstance(action, Send | Reply)]
        why = next(
            (f"{answer.reason}: {answer.detail}" for answer in answers if isinstance(answer, Refuse)), "sent twice, or ahead of its turn"
        )
        for header in commit.puts:
            yield self._fact("refused", header, queue=header.queue, client=client, detail=why)

    def _let_go(self, kind: str, lease: int, detail: str = "") -> Iterator[Fact]:
        hold = self._holds.get(lease)
        if hold is None or lease in self.state.leases:
            return
        del self._holds[lease]
        yield self._fact(kind, hold.header, attempt=hold.attempt, queue=hold.queue, client=hold.client, lease=lease,
                         seconds=self._now - hold.granted_at, detail=detail)  # fmt: skip

    def _withdrawn(self) -> Iterator[Fact]:
        """Leases that the broker ended itself."""
        if len(self._holds) != len(self.state.leases):
            for lease in [lease for lease in self._holds if lease not in self.state.leases]:
                yield from self._let_go("withdrawn", lease)

    # --- orders and notes -----------------------------------------------------------------------------------------------------

    def _issued(self, store: Store) -> Fact:
        header = store.header
        self._members[header.ticket or 0] = (header.group or 0, header.member or 0, header.purpose or "")
        return self._fact("issued", header, queue=header.queue, detail=header.purpose or "")

    def _sent(self, action: Send) -> Iterator[Fact]:
        message = action.message
        if isinstance(message, Deliver):
            self._holds[message.lease] = Hold(message.header.queue, action.client, self._now, message.header, message.header.attempt)
            if self._is_brief:
                return
            waiting = self.state.leases.get(message.lease)
            put_at = self.state.messages[waiting.message].put_at if waiting is not None else self._now
            queue = waiting.queue if waiting is not None else message.header.queue
            again = f"delivery {message.delivery}" if message.delivery > 1 else ""
            yield self._fact("leased", message.header, queue=queue, client=action.client, lease=message.lease, seconds=self._now - put_at,
                             tokens=message.held_tokens or None, detail=again)  # fmt: skip
        elif isinstance(message, InstallOrder):
            yield self._fact("ordered", message.header, queue="installs", client=action.client)

    def _noted(self, note: Note) -> Iterator[Fact]:
        numbers = note.numbers
        if note.kind == "lease_lost":
            yield from self._let_go("lost", int(numbers["lease"]), str(numbers["cause"]))
        elif note.kind == "grouping":
            yield self._fact("judged", group=int(numbers["group"]), reward=float(numbers["reward"]),
                             detail=f"{numbers['verdict']}, {numbers['members']} members")  # fmt: skip
        elif note.kind in STEP_NOTES:
            yield self._of_step(STEP_NOTES[note.kind], note)
        elif note.kind in VERSION_NOTES and "version" in numbers:
            seconds = float(numbers["seconds"]) if "seconds" in numbers else None
            said = str(numbers.get("reason", numbers.get("lineage", numbers.get("accuracy", ""))))
            yield self._fact(VERSION_NOTES[note.kind], version=int(numbers["version"]), client=str(numbers.get("replica", "")),
                             seconds=seconds, detail=f"{note.kind} {said}".strip())  # fmt: skip

    def _of_step(self, kind: str, note: Note) -> Fact:
        number = int(note.numbers["step"])
        plan = self.state.steps.get(number)
        if kind == "committed" and plan is not None:
            self._trained.update(dict.fromkeys(plan.tickets, number))
        seconds = float(note.numbers["seconds"]) if "seconds" in note.numbers else None
        shown = {key: value for key, value in note.numbers.items() if key not in ("step", "seconds")}
        return self._fact(kind, step=number, version=number, seconds=seconds, tickets=plan.tickets if plan is not None else (),
                          detail=" ".join(f"{key} {value}" for key, value in shown.items()))  # fmt: skip

    # --- endings --------------------------------------------------------------------------------------------------------------

    def _counts(self) -> dict[str, int]:
        ledger = self.state.ledger
        return {f"dropped({reason})": count for reason, count in ledger.dropped.items()}

    def _ended(self, failed: dict[int, str]) -> Iterator[Fact]:
        if len(self._members) == len(self.state.tickets):
            return
        before, self._endings = self._endings, self._counts()
        risen = [ending for ending, count in self._endings.items() if count > before.get(ending, 0)]
        for ticket in [ticket for ticket in self._members if ticket not in self.state.tickets]:
            group, member, purpose = self._members.pop(ticket)
            step = self._trained.pop(ticket, None)
            ending = f"trained({step})" if step is not None else failed.get(ticket) or self._ending(purpose, risen)
            yield self._fact("ended", ticket=ticket, group=group, member=member, detail=ending)

    def _ending(self, purpose: str, risen: list[str]) -> str:
        if purpose == "eval" and "dropped(run_end)" not in risen:
            return "evaluated"
        return " or ".join(risen) or "evaluated"


STEP_NOTES = {"step_planned": "planned", "step_committed": "committed", "plan_voided": "voided"}
VERSION_NOTES = {"installed": "installed", "install_failed": "install_failed", "version_adopted": "adopted", "lineage": "lineage",
                 "evaluation_started": "evaluation", "evaluation_done": "evaluation"}  # fmt: skip
