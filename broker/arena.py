"""The arena: the frames of every record that is still needed, under the core's message ids.

Filled and emptied by the core's `Keep`, `Store` and `Forget`, live and in recovery alike, so that it always equals a
fold of the journal. It never looks into a frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.actions import Action, Attachment, Forget, Keep, Store
from schemas.codec import Frame, encode_record
from schemas.header import Header


class Arena:
    """Frames by message id."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self.bytes = 0

    def take(self, action: Action, puts: Sequence[Header], frames: Sequence[Frame]) -> None:
        """Carries out one action, caused by an event with these puts and frames; other kinds of action mean nothing here."""
        if isinstance(action, Keep):
            self._keep(action, puts, frames)
        elif isinstance(action, Store):
            self._add(action.message, tuple(encode_record(action.record)))
        elif isinstance(action, Forget):
            self._forget(action)

    def _keep(self, action: Keep, puts: Sequence[Header], frames: Sequence[Frame]) -> None:
        start = 0
        for message, header in zip(action.messages, puts, strict=True):
            end = start + len(header.frames)
            if message:
                self._add(message, tuple(frames[start:end]))
            start = end

    def _add(self, message: int, frames: tuple[Frame, ...]) -> None:
        self._frames[message] = frames
        self.bytes += sum(len(frame) for frame in frames)

    def _forget(self, action: Forget) -> None:
        for message in action.messages:
            self.bytes -= sum(len(frame) for frame in self._frames.pop(message, ()))

    def frames_of(self, attachment: Attachment) -> tuple[Frame, ...]:
        """The frames that an attachment names; KeyError where they are gone (a broken invariant)."""
        frames = self._frames[attachment.message]
        return frames[1:2] if attachment.tokens_only else frames

    def __len__(self) -> int:
        return len(self._frames)
