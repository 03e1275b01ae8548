"""A session as a conversation: which records it is made from, and what the broker and the trainer made of it."""

from __future__ import annotations

import numpy as np

from schemas.errors import ConfigError, JournalError
from tools.records import episode
from tools.records.looking import Look
from tools.records.record import Opened, open_record
from tools.records.selection import Selection
from tools.records.telling import plan_of
from tools.records.words import words_of


def conversation(look: Look, ticket: int, attempt: int | None) -> episode.Conversation:
    """A session; the last one of the ticket where `attempt` is None. Raises ConfigError where nothing of it is recorded."""
    rows = look.unrefused(Selection(session=(ticket, attempt)))
    if not len(rows):
        raise ConfigError(f"session {ticket}{f'.{attempt}' if attempt else ''}: nothing of it is recorded here")
    last = attempt if attempt is not None else int(rows["attempt"].max())
    return _conversation(look, ticket, last, rows[rows["attempt"] == last])


def _conversation(look: Look, ticket: int, attempt: int, rows: np.ndarray) -> episode.Conversation:
    queues = look.index.meta.queues
    by_queue = {queue: [row for row in rows if queues[int(row["queue"])] == queue] for queue in queues}
    sample = _newest(look, [*by_queue.get("scored", ()), *by_queue.get("samples", ())])
    whole = _newest(look, by_queue.get("episodes", []))
    remarks: list[str] = []
    if whole is not None and "tokens" in whole.arrays:
        raw, source = episode.of_episode(whole), "episode"
    else:
        raw, source = _from_messages(look, [*by_queue.get("turns", ()), *by_queue.get("actions", ())], remarks), "turns and actions"
    plan = plan_of(look, ticket, int(rows["number"].max()))
    group = int(rows["group"][0])
    reward = sample.header.get("reward") if sample is not None else None
    advantage = episode.advantage_in(plan, group, reward)
    return episode.Conversation(
        ticket=ticket, attempt=attempt, group=group, source=source, task=whole.body.get("task") if whole else None,
        outcome=whole.body.get("outcome") if whole else None, reward=reward,
        reward_parts=sample.body.get("reward_parts", {}) if sample else {}, step=plan.step if plan else None,
        truncated=bool(whole and whole.header.get("truncated")), remarks=[*remarks, *(whole.remarks if whole else ())],
        pieces=episode.pieces_of(raw, words_of(look.run), advantage, plan.oldest_allowed if plan else 0),
    )  # fmt: skip


def _newest(look: Look, rows: list[np.ndarray]) -> Opened | None:
    try:
        return open_record(look.run.journal, max(rows, key=lambda row: int(row["number"]))) if rows else None
    except JournalError:
        return None


def _from_messages(look: Look, rows: list[np.ndarray], remarks: list[str]) -> episode.Raw:
    records = []
    for row in sorted(rows, key=lambda row: int(row["number"])):
        try:
            records.append(open_record(look.run.journal, row))
        except JournalError as error:
            remarks.append(str(error))
    remarks += [remark for record in records for remark in record.remarks]
    return episode.of_messages(records)
