"""Where a fold begins: the newest state at or before an entry, of the index's own or of the broker's checkpoints."""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker.core.state import State
from broker.journal import Checkpoint
from broker.journal import checkpoint as checkpoints
from tools.records.folding import state_of
from tools.records.index import Index
from tools.records.tables import Snapshot


def nearest(index: Index, number: int) -> Snapshot | None:
    """None where no state is kept so early. Entry `number` of it may stand in the midst of the commit at its position."""
    kept = index.snapshot_before(number)
    for path in checkpoints.paths(index.journal):
        if int(path.stem) <= number and (kept is None or int(path.stem) > kept.number):
            found = _of_checkpoint(path)
            if found is not None:
                return found
    return kept


def _of_checkpoint(path: Path) -> Snapshot | None:
    try:
        found: Checkpoint | None = checkpoints.read(path)
    except FileNotFoundError:  # a running broker has just removed it
        return None
    if found is None or state_of(found.state) is None:
        return None
    where = (found.position.segment, found.position.offset)
    return Snapshot(found.number, where, found.state, msgspec.msgpack.encode(found.arena))


def already_since(state: State, tickets: frozenset[int], step: int | None) -> float | None:
    """When the first of these tickets was issued, or the step planned, where the state knows of it already."""
    since = [state.tickets[ticket].issued_at for ticket in tickets if ticket in state.tickets]
    if step is not None and step in state.steps:
        since.append(state.steps[step].planned_at)
    return min(since, default=None)
