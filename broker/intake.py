"""The door for records: whether the frames of a commit are what its headers say. Nothing of a commit that fails here reaches the core."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.codec import MESSAGE_BYTES_MAX, Frame, check_header
from schemas.errors import WireError
from schemas.messages import Commit


def check_puts(commit: Commit, frames: Sequence[Frame], message_bytes: int = MESSAGE_BYTES_MAX) -> None:
    """Raises WireError where `frames` are not exactly those that the headers describe. `message_bytes`: size of the message that they
    came in, which bounds the headers'."""
    if len(commit.puts) == 1:
        check_header(commit.puts[0], frames, message_bytes)
        return
    described = sum(len(header.frames) for header in commit.puts)
    if described != len(frames):
        raise WireError(f"{len(frames)} frames follow; the headers describe {described}")
    start = 0
    for header in commit.puts:
        end = start + len(header.frames)
        check_header(header, frames[start:end], message_bytes)
        start = end
