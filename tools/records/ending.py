"""How a run stands at its journal's end: what became of its tickets, its last step, its phase.

From all that was followed, where that is everything or nearly so; of a large journal that nobody followed yet, from the broker's newest
checkpoint and the entries behind it, which is a matter of a second.
"""

from __future__ import annotations

from msgspec import Struct, field

from broker.core.state import State
from broker.journal.format import Position
from broker.journal.reading import Damage, Scan
from tools.records.folding import fold_from
from tools.records.looking import Look
from tools.records.starting import nearest
from tools.records.tables import Followed

FOLLOWED_BYTES = 48 << 20
"""So much is followed for an overview: some seconds, once."""


class Ending(Struct, kw_only=True):
    """`is_whole`: everything was followed, so that failures are counted and refusals known."""

    is_whole: bool
    phase: str = ""
    endings: dict[str, int] = field(default_factory=dict)
    step: int = 0
    """Last one that was committed, or planned where everything is known."""
    failures: int = 0
    """Tries at a record, and tickets."""
    failed_tickets: int = 0
    note: str = ""


def ending_of(look: Look) -> Ending:
    """After a scan."""
    if look.unfollowed_bytes() <= FOLLOWED_BYTES:
        look.follow()
    known = look.index.meta.followed
    if look.unfollowed_bytes() == 0 or look.is_followed:
        return _of_followed(known)
    state = _state_at_end(look)
    if state is None:
        return Ending(is_whole=False, note="no checkpoint stands near its end")
    return Ending(is_whole=False, phase=state.phase.value, endings=_endings(state), step=state.trainer.step)


def _of_followed(known: Followed) -> Ending:
    step = max((row.step for row in known.steps), default=0)
    tickets = sum(failure.final for failure in known.failures)
    return Ending(is_whole=True, phase=known.phase, endings=known.endings, step=step, failures=len(known.failures), failed_tickets=tickets,
                  note=known.note)  # fmt: skip


def _state_at_end(look: Look) -> State | None:
    last = look.index.meta.segments[-1].next or 0
    start = nearest(look.index, last)
    if start is None or look.bytes_behind(*start.position) > 2 * FOLLOWED_BYTES:
        return None
    fold = fold_from(look.run.journal, start)
    for item in Scan(look.run.journal, Position(*start.position), want_frames=False):
        if isinstance(item, Damage):
            if item.last >= item.first:
                return None
        elif item.number >= start.number:
            fold.take(item)
    return fold.lives.state if fold.lives is not None else None


def _endings(state: State) -> dict[str, int]:
    ledger = state.ledger
    counts = {"trained": ledger.trained, "evaluated": ledger.evaluated}
    counts |= {f"dropped({reason})": count for reason, count in ledger.dropped.items()}
    counts |= {f"failed({boundary})": count for boundary, count in ledger.failed.items()}
    return {ending: count for ending, count in counts.items() if count}
