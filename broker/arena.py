"""The arena: the frames of every record that is still needed, under the core's message ids.

Filled and emptied by the core's `Keep`, `Store` and `Forget`, live and in recovery alike, so that it always equals a
fold of the journal. It never looks into a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.core.actions import Action, Attachment, Detach, Forget, Keep, Store
from broker.journal import Contents, Entry, Place, Position
from schemas.codec import Frame, encode_record
from schemas.errors import JournalError
from schemas.header import Header


class Arena:
    """Frames by message id, and where they lie in the journal."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._places: dict[int, Place] = {}
        self._damaged: dict[int, None] = {}
        self._loose: dict[int, None] = {}
        """Messages that are written out in each checkpoint, so that their place in the journal need not be kept."""
        self.bytes = 0

    def take(self, action: Action, puts: Sequence[Header], frames: Sequence[Frame] | None, position: Position | None = None) -> None:
        """Carries out one action, caused by an event with these puts and frames (None: they are damaged), journaled at `position`; other
        kinds of action mean nothing here."""
        if isinstance(action, Keep):
            self._keep(action, puts, frames, position)
        elif isinstance(action, Forget):
            self._forget(action)
        elif isinstance(action, Store):
            self._add(action.message, tuple(encode_record(action.record)))
        elif isinstance(action, Detach):
            self._loose.update(dict.fromkeys(action.messages))

    def _keep(self, action: Keep, puts: Sequence[Header], frames: Sequence[Frame] | None, position: Position | None) -> None:
        if len(puts) == 1 and frames is not None and position is not None:  # nearly always: all frames are of the one record
            (message,) = action.messages
            if message:
                self._places[message] = Place(position.segment, position.offset, 0, len(frames))
                self._add(message, tuple(frames))
            return
        start = 0
        for message, header in zip(action.messages, puts, strict=True):
            count = len(header.frames)
            if message:
                if position is not None:
                    self._places[message] = Place(position.segment, position.offset, start, count)
                if frames is None:
                    self._damaged[message] = None
                else:
                    self._add(message, tuple(frames[start : start + count]))
            start += count

    def _add(self, message: int, frames: tuple[Frame, ...]) -> None:
        self._frames[message] = frames
        self.bytes += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    def _forget(self, action: Forget) -> None:
        held, places = self._frames, self._places
        for message in action.messages:
            self.bytes -= sum(map(len, held.pop(message, ())))
            places.pop(message, None)
        if self._damaged or self._loose:
            for message in action.messages:
                self._damaged.pop(message, None)
                self._loose.pop(message, None)

    # --- checkpoints --------------------------------------------------------------------------------------------------------

    def contents(self) -> Contents:
        """What a checkpoint keeps: places of what lies in the journal, frames of what does not."""
        placed = {message: place for message, place in self._places.items() if not (message in self._loose and message in self._frames)}
        inline = {message: tuple(map(bytes, frames)) for message, frames in self._frames.items() if message not in placed}
        return Contents(placed=placed, inline=inline)

    def load(self, contents: Contents) -> None:
        """The arena of a checkpoint; frames that lie in the journal are missing until `fetch`."""
        self._places = dict(contents.placed)
        for message, frames in contents.inline.items():
            self._add(message, frames)

    def fetch(self, entry_at: Callable[[Position], Entry]) -> tuple[int, ...]:
        """Reads the frames that are missing; returns the messages whose frames are damaged."""
        missing = sorted((place.position, message) for message, place in self._places.items() if message not in self._frames)
        entry: Entry | None = None
        for position, message in missing:
            if entry is None or entry.position != position:
                entry = _read(entry_at, position)
            if entry is None or not entry.frames_whole:
                self._damaged[message] = None
            else:
                place = self._places[message]
                self._add(message, entry.frames[place.first : place.first + place.count])
        return tuple(self._damaged)

    def frames_of(self, attachment: Attachment) -> tuple[Frame, ...]:
        """The frames that an attachment names; KeyError where they are gone (a broken invariant)."""
        frames = self._frames[attachment.message]
        return frames[1:2] if attachment.tokens_only else frames

    def frames_kept(self, message: int) -> tuple[Frame, ...]:
        """The frames of a message; none where they are gone."""
        return self._frames.get(message, ())

    def __len__(self) -> int:
        return len(self._frames)


def _read(entry_at: Callable[[Position], Entry], position: Position) -> Entry | None:
    try:
        return entry_at(position)
    except JournalError:
        return None
