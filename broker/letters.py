"""Answers about dead letters, as JSON-ready maps. Pure; reads, never changes."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from broker.core.state import State
from broker.core.traces import DeadLetter
from schemas.messages import DeadAsked, DeadLetters


def answer(state: State, asked: DeadAsked, now: float) -> tuple[DeadLetters, int | None]:
    """The letters asked for; and the message whose frames go with them, where one letter was asked for."""
    if not asked.id:
        return DeadLetters(letters=tuple(_row(letter, now) for letter in state.dead.values()), dropped=state.dead_dropped), None
    letter = state.dead.get(asked.id)
    if letter is None:
        return DeadLetters(dropped=state.dead_dropped), None
    return DeadLetters(letters=(_row(letter, now),), dropped=state.dead_dropped), letter.message


def _row(letter: DeadLetter, now: float) -> dict[str, Any]:
    return {
        "id": letter.id,
        "queue": letter.queue,
        "age_s": now - letter.at,
        "cause": letter.cause,
        "task_index": letter.task_index,
        "header": to_builtins(letter.header),
        "history": [
            {"queue": each.queue, "client": each.client, "attempt": each.attempt, "age_s": now - each.at, "cause": each.cause}
            for each in letter.history
        ],
        "retried": letter.retried,
    }
