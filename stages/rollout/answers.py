"""From a delivered turn to the context it is played on, and from the engine's result to the action that answers it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from schemas.errors import EngineError
from schemas.header import Header
from schemas.records import Action, Array, VersionSpan
from stages.rollout.engine import SessionKey, TurnResult
from stages.service.stage import Delivery


class ContextMismatchError(EngineError):
    """What this replica holds and was sent of a session is not what env digested."""


def session_of(header: Header) -> SessionKey:
    """(ticket, attempt) of a turn."""
    return header.ticket or 0, header.attempt or 0


def context_of(ours: Array, delivery: Delivery) -> Array:
    """All tokens before the turn: what is held of the session and what was sent. Raises ContextMismatchError."""
    if delivery.held_tokens > ours.size:
        raise ContextMismatchError(f"context mismatch: the broker believes that {delivery.held_tokens} tokens are held, {ours.size} are")
    return np.concatenate([ours[: delivery.held_tokens], *delivery.context]).astype(np.int32, copy=False)


def action_of(result: TurnResult) -> Action:
    """The record of a finished turn."""
    return Action(
        finish_reason=result.finish_reason,
        sample_spans=result.sample_spans,
        kv_spans=result.kv_spans,
        near_ties=len(result.near_ties),
        queue_seconds=result.waiting_seconds,
        generate_seconds=result.running_seconds,
        tokens=result.tokens,
        logprobs=result.logprobs,
        kept_ids=result.kept_ids,
        kept_counts=result.kept_counts,
    )


def action_fields(turn: Header, result: TurnResult) -> dict[str, Any]:
    """Header fields of an action: whose it is, how long, by which versions."""
    carried = {name: getattr(turn, name) for name in ("ticket", "group", "member", "attempt", "turn", "purpose")}
    count = int(result.tokens.size)
    counted = {"context_tokens": result.context_tokens, "new_tokens": count, "trainable_tokens": count}
    return {**carried, **counted, **_versions(result.sample_spans)}


def _versions(spans: Iterable[VersionSpan]) -> dict[str, int]:
    versions = [span.version for span in spans]
    return {"oldest_version": min(versions), "newest_version": max(versions)} if versions else {}
