"""Dead letters: records that were given up, kept with their history and frames, so that a person can look at them and try again.

A ticket still ends `failed`, once, as the ledger says; the letter is kept beside that and is bounded in number and in
bytes: the oldest goes, and a note says so. A retry never takes an ending back. It issues another ticket of the same
member where the group still takes one, and otherwise puts the task in front of those that admission brings next, as a
whole new group: a group of old and new members would compare answers of different policies. An evaluation is a
measurement: while it is open a problem can be asked again, after that it stands.
"""

from __future__ import annotations

from broker.core import issue
from broker.core.actions import Detach, Reply
from broker.core.crank import Crank
from broker.core.state import Group, Phase, Queued, State
from broker.core.traces import Attempt, DeadLetter
from schemas.messages import DeadRetried, DeadRetry

LETTERS_MAX = 1000
"""A person looks at a few dozen; a thousand show a pattern."""
LETTER_BYTES_MAX = 8 << 20
"""Frames of dead letters beside the one budget, at most: every checkpoint of the journal writes them anew."""
HISTORY_MAX = 32
"""Attempts remembered of one record or ticket."""
CAUSE_CHARACTERS_MAX = 400


def remember(crank: Crank, message: Queued, client: str, cause: str) -> None:
    """A delivery came to nothing: noted with its ticket, or with the record where it has none."""
    ticket = crank.state.tickets.get(message.header.ticket or 0)
    attempt = Attempt(queue=message.queue, client=client, attempt=ticket.attempt if ticket else 0, at=crank.now,
                      cause=cause[:CAUSE_CHARACTERS_MAX])  # fmt: skip
    history = message.history if ticket is None else ticket.history
    history.append(attempt)
    del history[:-HISTORY_MAX]


def bury(crank: Crank, message: Queued, cause: str) -> None:
    """Keeps a record that is given up; called before its ticket ends."""
    state = crank.state
    ticket = state.tickets.get(message.header.ticket or 0)
    group = state.groups.get(ticket.group) if ticket else None
    letter = DeadLetter(
        id=state.next_dead, message=message.id, queue=message.queue, header=message.header, at=crank.now,
        cause=cause[:CAUSE_CHARACTERS_MAX],
        task_index=group.task_index if group else None, version=ticket.version if ticket else None,
        history=list(ticket.history if ticket else message.history),
    )  # fmt: skip
    state.next_dead += 1
    state.dead[letter.id] = letter
    state.dead_bytes += letter_bytes(letter)
    crank.spared.add(message.id)
    crank.out.append(Detach((message.id,)))
    crank.note("dead_letter", letter=letter.id, queue=letter.queue, ticket=message.header.ticket or 0, cause=letter.cause)
    _stay_in_bounds(crank)


def letter_bytes(letter: DeadLetter) -> int:
    """Bytes of its frames."""
    return sum(frame.bytes for frame in letter.header.frames)


def _stay_in_bounds(crank: Crank) -> None:
    state = crank.state
    while len(state.dead) > LETTERS_MAX or (state.dead_bytes > LETTER_BYTES_MAX and len(state.dead) > 1):
        oldest = state.dead.pop(next(iter(state.dead)))
        state.dead_bytes -= letter_bytes(oldest)
        state.dead_dropped += 1
        crank.spared.discard(oldest.message)
        crank.forget(oldest.message)
        crank.note("dead_letter_dropped", letter=oldest.id, kept=len(state.dead), bytes=state.dead_bytes)


def on_retry(crank: Crank, asked: DeadRetry) -> None:
    """A person wants a letter tried again. Needs no hello; answered with what came of it."""
    letter = crank.state.dead.get(asked.id)
    if letter is None:
        done, detail = False, f"there is no dead letter {asked.id}"
    elif letter.retried:
        done, detail = False, f"it was tried again before: {letter.retried}"
    else:
        done, detail = _retry(crank, letter)
        letter.retried = detail if done else ""
        crank.note("dead_letter_retried", letter=letter.id, done=int(done), detail=detail)
    crank.out.append(Reply(DeadRetried(id=asked.id, done=done, detail=detail)))


def _retry(crank: Crank, letter: DeadLetter) -> tuple[bool, str]:
    state = crank.state
    if letter.header.ticket is None or letter.task_index is None:
        return False, f"a record of {letter.queue} belongs to no ticket; its producer has to put it again"
    if state.failure is not None or state.stop_reason is not None or state.phase in (Phase.CLOSING, Phase.CLOSED):
        return False, "the run is ending"
    if letter.header.purpose == "eval":
        return _ask_again(crank, letter)
    group = state.groups.get(letter.header.group or 0)
    if group is not None and not group.judged:
        return _play_again(crank, letter, group)
    return _queue_task(state, letter.task_index)


def _play_again(crank: Crank, letter: DeadLetter, group: Group) -> tuple[bool, str]:
    state = crank.state
    if state.ledger.charged + issue.ticket_bytes(state) > state.settings.budget_bytes:
        return False, "the budget has no room for another ticket now; try again when some have ended"
    ticket = issue.ticket(crank, group, letter.header.member or 0, letter.version)
    group.members.append(ticket.id)
    return True, f"ticket {ticket.id} plays member {ticket.member} of group {group.id} again"


def _ask_again(crank: Crank, letter: DeadLetter) -> tuple[bool, str]:
    state = crank.state
    evaluation = next((each for each in state.evaluations if each.version == letter.version), None)
    if evaluation is None or evaluation.ended_at is not None:
        return False, f"the evaluation of version {letter.version} is over; the problem counts as not solved in it"
    if state.ledger.charged + issue.ticket_bytes(state) > state.settings.budget_bytes:
        return False, "the budget has no room for another ticket now; try again when some have ended"
    group = issue.group(crank, task_index=letter.task_index or 0, purpose="eval", members=1, version=letter.version)
    evaluation.open.extend(group.members)
    evaluation.failed -= 1
    return True, f"ticket {group.members[0]} asks problem {letter.task_index} of the evaluation of version {letter.version} again"


def _queue_task(state: State, task_index: int) -> tuple[bool, str]:
    """The group was judged or is gone."""
    if state.groups_admitted >= state.settings.steps * state.settings.groups_per_step:
        return False, "its group is through, and no more groups will be admitted in this run"
    state.retry_tasks.append(task_index)
    return True, f"its group is through; the next group that is admitted plays task {task_index}"
