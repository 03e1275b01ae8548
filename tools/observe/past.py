"""What a broker that is gone would answer about its dead letters: from its journal, which is read and not touched.

Promises the letters as of the journal's last whole entry, of a broker that was killed, ended or hangs. Where entries are lost on the way to
there, JournalError says so.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker import letters
from broker.core.state import State
from broker.journal import Checkpoint, Contents, Entry, Position
from broker.journal import checkpoint as checkpoints
from broker.journal.reading import Damage, Scan, entry_at
from schemas.codec import Frame
from schemas.errors import JournalError
from schemas.messages import DeadAsked, DeadLetters
from tools.records.folding import Fold, state_of


def dead_of(run: Path, asked: DeadAsked) -> tuple[DeadLetters, list[Frame]]:
    """As the broker's own answer. Raises JournalError where the journal does not lead to a state."""
    journal = run / "journal"
    state, contents, now = _at_end(journal)
    found, message = letters.answer(state, asked, now)
    return found, [] if message is None else _frames(journal, contents, message)


def _at_end(journal: Path) -> tuple[State, Contents, float]:
    start, state = _newest(journal)
    fold = Fold(journal, state, places=start.arena if start is not None else None)
    now = start.now if start is not None else 0.0
    for item in Scan(journal, start.position if start is not None else None):
        if isinstance(item, Damage):
            if item.last >= item.first:
                raise JournalError(f"{journal}: entries {item.first} to {item.last} are lost; `tidemill inspect` shows what can be read")
        elif start is None or item.number >= start.number:
            fold.take(_without_frames(item))
            now = item.now
    if fold.lives is None:
        raise JournalError(f"{journal}: {fold.note or 'no run was begun in it'}")
    return fold.lives.state, fold.places.contents(), now


def _without_frames(entry: Entry) -> Entry:
    """Their place is enough until one letter's are asked for."""
    return msgspec.structs.replace(entry, frames=())


def _newest(journal: Path) -> tuple[Checkpoint | None, State | None]:
    for path in checkpoints.paths(journal):
        found = checkpoints.read(path)
        state = state_of(found.state) if found is not None else None
        if found is not None and state is not None:
            return found, state
    return None, None


def _frames(journal: Path, contents: Contents, message: int) -> list[Frame]:
    if message in contents.inline:
        return list(contents.inline[message])
    place = contents.placed.get(message)
    if place is None:
        return []
    entry = entry_at(journal, Position(place.segment, place.offset))
    return list(entry.frames[place.first : place.first + place.count])
