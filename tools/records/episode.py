"""An episode as a conversation: each token with where it came from, its log-prob, its version, its advantage. Pure.

Made from the session's episode (or the sample that became of it); of a session that has none, from its turns and actions so far. The
advantage is the one that actor-train computes from the recorded plan's rewards; without a plan there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from schemas.errors import InvariantError
from stages.actor_train.core.advantages import spread_of
from tools.records.record import Opened
from tools.records.tables import StepRow


class Token(Struct, kw_only=True, frozen=True, gc=False):
    """One token of a session. `advantage` is None where nothing was planned, `masked` where the plan took its mask for its age."""

    position: int
    id: int
    text: str | None
    sampled: bool
    logprob: float | None = None
    version: int | None = None
    advantage: float | None = None
    masked: bool = False


class Piece(Struct, kw_only=True):
    """Tokens that one side said at once."""

    who: str
    turn: int
    tokens: list[Token]


class Conversation(Struct, kw_only=True):
    """A session, as far as it is recorded."""

    ticket: int
    attempt: int
    group: int | None
    source: str
    """`episode`, or `turns and actions`: it has not ended, or its episode is gone."""
    pieces: list[Piece]
    task: Any = None
    outcome: Any = None
    reward: float | None = None
    reward_parts: dict[str, float] = {}
    step: int | None = None
    truncated: bool = False
    remarks: list[str] = []


class Raw(Struct):
    """Columns of a session's tokens."""

    ids: np.ndarray
    sampled: np.ndarray
    logprobs: np.ndarray
    spans: list[Any]
    bounds: list[tuple[int, int, int]]


def of_episode(record: Opened) -> Raw:
    """Columns of an `episode` record. A field that its schema lacks is empty."""
    ids = _array(record, "tokens", np.int32)
    bounds = [(int(turn[0]), int(turn[1]), int(turn[2])) for turn in record.body.get("turns", ())]
    return Raw(ids, _array(record, "loss_mask", np.uint8, len(ids)) != 0, _array(record, "logprobs", np.float32, len(ids)),
               list(record.body.get("sample_spans", ())), bounds or [(0, 0, len(ids))])  # fmt: skip


def of_messages(records: Sequence[Opened]) -> Raw:
    """Columns of turns and actions, in order."""
    ids, sampled, logprobs = [np.empty(0, np.int32)], [np.empty(0, bool)], [np.empty(0, np.float32)]
    spans: list[Any] = []
    bounds: list[tuple[int, int, int]] = []
    start = 0
    for record in records:
        tokens, is_action = _array(record, "tokens", np.int32), record.tag == "action"
        ids.append(tokens)
        sampled.append(np.full(len(tokens), is_action))
        logprobs.append(_array(record, "logprobs", np.float32, len(tokens)) if is_action else np.zeros(len(tokens), np.float32))
        spans += record.body.get("sample_spans", ()) if is_action else ()
        end = start + len(tokens)
        if is_action and bounds:
            bounds[-1] = (bounds[-1][0], start, end)
        else:
            bounds.append((start, end, end))
        start = end
    return Raw(np.concatenate(ids), np.concatenate(sampled), np.concatenate(logprobs), spans, bounds)


def _array(record: Opened, name: str, kind: type, size: int | None = None) -> np.ndarray:
    found = record.arrays.get(name)
    return np.zeros(size or 0, kind) if found is None or (size is not None and len(found) != size) else found


def versions_of(raw: Raw) -> np.ndarray:
    """Version of each token; -1 where none sampled it."""
    versions = np.full(len(raw.ids), -1)
    for start, end, version in raw.spans:
        versions[start:end] = version
    return np.where(raw.sampled, versions, -1)


def advantage_in(plan: StepRow | None, group: int | None, reward: float | None) -> float | None:
    """As actor-train computes it; None without a plan or a reward."""
    rewards = dict(plan.groups).get(group) if plan is not None and group is not None else None
    if rewards is None or reward is None:
        return None
    try:
        return spread_of(rewards).advantage(reward)
    except InvariantError:
        return None


def pieces_of(raw: Raw, words: Any, advantage: float | None, oldest_allowed: int) -> list[Piece]:
    """Both sides of each turn."""
    versions = versions_of(raw)
    pieces = []
    for turn, (start, action, end) in enumerate(raw.bounds):
        for who, span in (("environment", range(start, action)), ("policy", range(action, end))):
            if len(span):
                pieces.append(Piece(who=who, turn=turn, tokens=list(_tokens(raw, versions, span, words, advantage, oldest_allowed))))
    return pieces


def _tokens(raw: Raw, versions: np.ndarray, span: range, words: Any, advantage: float | None, oldest_allowed: int) -> Iterable[Token]:
    for at in span:
        text = words(int(raw.ids[at])) if words is not None else None
        if not raw.sampled[at]:
            yield Token(position=at, id=int(raw.ids[at]), text=text, sampled=False)
            continue
        version = int(versions[at])
        masked = advantage is not None and 0 <= version < oldest_allowed
        yield Token(position=at, id=int(raw.ids[at]), text=text, sampled=True, logprob=float(raw.logprobs[at]),
                    version=version if version >= 0 else None, advantage=advantage, masked=masked)  # fmt: skip
