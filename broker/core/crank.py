"""One turn of the crank: the scratch of a single `step`, handed to every rule.

Rules change `state` and order through `out`; which queues need delivery is noted in `dirty` and served once, at the
end.
"""

from __future__ import annotations

from broker.core.actions import Action, Attachment, Forget, Note, Send
from broker.core.index import index_of
from broker.core.state import Failed, Queued, State
from broker.policy.registry import DEFAULT, Policies
from schemas.messages import BrokerMessage


class Crank:
    """State, the event's time, and the orders so far."""

    __slots__ = ("dirty", "index", "now", "offer_due", "out", "plan_due", "policies", "seen", "spared", "state", "thinned", "touched")

    def __init__(self, state: State, now: float, policies: Policies = DEFAULT) -> None:
        self.state = state
        self.policies = policies
        self.index = index_of(state)
        self.now = now
        self.out: list[Action] = []
        self.dirty: set[str] = set()
        self.touched: set[str] = set()
        """Clients whose room for work may have changed since the index was last settled."""
        self.seen: set[str] = set()
        """Clients for which it was settled in this step."""
        self.thinned: set[str] = set()
        """Queues that lost a record otherwise than by delivery."""
        self.spared: set[int] = set()
        """Messages whose frames a dead letter keeps."""
        self.plan_due = False
        self.offer_due = False

    def send(self, client: str, message: BrokerMessage, *attach: Attachment) -> None:
        """Orders `message` to `client`, unless it is known to be gone: its next hello starts from the state, not from what it missed."""
        known = self.state.clients.get(client)
        if known is not None and known.connected:
            self.out.append(Send(client, message, attach))

    def note(self, kind: str, **numbers: float | int | str) -> None:
        """Records a decision."""
        self.out.append(Note(kind, numbers))

    def settle(self) -> None:
        """Brings the index up to what was touched."""
        if self.touched:
            self.index.settle(self.state, self.touched)
            self.seen |= self.touched
            self.touched.clear()

    def new_message(self) -> int:
        """A fresh message id."""
        state = self.state
        number = state.next_message
        state.next_message = number + 1
        return number

    def forget(self, *messages: int | None) -> None:
        """These messages' frames are needed by nobody."""
        gone = [message for message in messages if message]
        kept = self.state.messages
        for message in gone:
            kept.pop(message, None)
        if self.spared:
            gone = [message for message in gone if message not in self.spared]
        if gone:
            self.out.append(Forget(tuple(gone)))

    def progressed(self) -> None:
        """Something moved: the stall notice starts over."""
        self.state.progress_at = self.now

    def fail_run(self, stage: str, reason: str, advice: str, last_lines: tuple[str, ...] = ()) -> None:
        """The run cannot go on; the first reason is kept."""
        if self.state.failure is None:
            self.state.failure = Failed(stage=stage, reason=reason, advice=advice, last_lines=last_lines)
            self.note("run_failed", stage=stage, reason=reason)

    def enqueue(self, message: Queued) -> None:
        """Puts a new message at the end of its queue."""
        state, now = self.state, self.now
        state.messages[message.id] = message
        queue = state.queues[message.queue]
        queue.ready[message.id] = None
        queue.puts += 1
        if queue.last_put_at is not None:
            gap = now - queue.last_put_at
            mean = queue.interval_s if queue.interval_s is not None else gap
            queue.jitter_s = queue.jitter_s * KEEP + abs(gap - mean) * (1.0 - KEEP)
            queue.interval_s = smoothed(queue.interval_s, gap)
        queue.last_put_at = now
        self.dirty.add(message.queue)
        state.progress_at = now

    def give_back(self, message: Queued) -> None:
        """Returns a message whose lease was lost, ahead of those not yet delivered."""
        self.state.queues[message.queue].back[message.id] = None
        self.state.queues[message.queue].redeliveries += 1
        self.dirty.add(message.queue)


HALF_LIFE_EVENTS = 16.0
"""Smoothing of signals: a queue's pace is seen within a step, one straggler is not mistaken for a trend."""

KEEP: float = 0.5 ** (1.0 / HALF_LIFE_EVENTS)


def smoothed(old: float | None, value: float) -> float:
    """Exponential mean with a half-life of `HALF_LIFE_EVENTS` values."""
    if old is None:
        return value
    return old * KEEP + value * (1.0 - KEEP)
