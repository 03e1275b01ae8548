"""What must hold of the state between two events. Tests check it after every event, the live broker now and then."""

from __future__ import annotations

from collections import Counter

from broker.core import dead, grants, index, ledger, waiting
from broker.core.state import Stand, State


def violations(state: State) -> list[str]:
    """Every broken promise, as a sentence; empty where all hold. O(size of the state)."""
    return [*ledger.violations(state), *_places(state), *_holds(state), *_sessions(state), *grants.violations(state), *_budget(state),
            *waiting.violations(state), *_dead(state), *index.violations(state)]  # fmt: skip


def _places(state: State) -> list[str]:
    """A message is in one queue's line, or under one lease, or waits in its group or plan."""
    wrong = []
    lined = Counter(m for queue in state.queues.values() for part in (queue.back, queue.ready) for m in part)
    leased = Counter(lease.message for lease in state.leases.values())
    wrong += [f"message {m} stands {n} times in queues" for m, n in lined.items() if n > 1]
    wrong += [f"message {m} has {n} leases" for m, n in leased.items() if n > 1]
    wrong += [f"message {m} is queued and leased" for m in lined if m in leased]
    wrong += [f"message {m} is unknown" for m in (*lined, *leased) if m not in state.messages]
    planned = {ticket for step in state.steps.values() for ticket in step.tickets}
    for ticket in state.tickets.values():
        if (ticket.stand in (Stand.PLANNED, Stand.TRAINED)) != (ticket.id in planned):
            wrong.append(f"ticket {ticket.id} is {ticket.stand}, and {'in' if ticket.id in planned else 'not in'} a step plan")
        if ticket.stand is Stand.QUEUED and ticket.message not in lined:
            wrong.append(f"ticket {ticket.id} is queued nowhere")
        if ticket.stand in (Stand.SCORING, Stand.REFERENCING) and not (ticket.record in lined or ticket.record in leased):
            wrong.append(f"ticket {ticket.id} is {ticket.stand}, its record is neither queued nor leased")
    return wrong


def _holds(state: State) -> list[str]:
    held: Counter[tuple[str, str]] = Counter((lease.client, lease.queue) for lease in state.leases.values())
    wrong = []
    for client in state.clients.values():
        for queue, count in client.held.items():
            if held.pop((client.name, queue), 0) != count:
                wrong.append(f"{client.name} is said to hold {count} of {queue}")
    wrong += [f"{client} holds {count} of {queue}, unsaid" for (client, queue), count in held.items()]
    for name, stream in state.queues.items():
        if stream.leased != sum(1 for lease in state.leases.values() if lease.queue == name):
            wrong.append(f"queue {name} is said to have {stream.leased} leases")
    return wrong


def _sessions(state: State) -> list[str]:
    wrong = []
    for session in state.sessions.values():
        ticket = state.tickets.get(session.ticket)
        if ticket is None or ticket.stand is not Stand.PLAYING or ticket.attempt != session.attempt:
            wrong.append(f"session ({session.ticket}, {session.attempt}) outlived its ticket")
        if session.held > len(session.frames) or len(session.frames) != len(session.tokens):
            wrong.append(f"session ({session.ticket}, {session.attempt}): {session.held} of {len(session.frames)} frames held")
    return wrong


def _budget(state: State) -> list[str]:
    charged, budget = state.ledger.charged, state.settings.budget_bytes
    return [f"budget: {charged} bytes charged of {budget}"] if charged > budget else []


def _dead(state: State) -> list[str]:
    held = sum(dead.letter_bytes(letter) for letter in state.dead.values())
    return [f"dead letters hold {held} bytes, noted are {state.dead_bytes}"] if held != state.dead_bytes else []
