"""How a journal ends, and whether more was recorded than is there: its broker's checkpoints and the run's summary say so.

Nothing is claimed that does not follow from them: what is cut off at the end was never acknowledged only where a whole segment ends so.
"""

from __future__ import annotations

import json

from msgspec import Struct

from broker.journal_files import checkpoint_paths
from tools.records.looking import Look
from tools.records.opening import Run, json_of
from tools.records.tables import Segment

CLOSED = "closed"


class Tail(Struct, frozen=True, kw_only=True):
    """`bytes`: what the last segment ends with and is no whole commit."""

    is_live: bool = False
    bytes: int = 0
    segment: int = 0
    is_headless: bool = False
    """The last segment's own head is damaged: nothing is known of what it was."""
    is_closed: bool = False
    """The run was at its end before."""
    entries: int = 0
    """Number behind the last entry."""
    short_of: str = ""
    """What says that there was more; empty where nothing does."""


def tail_of(look: Look) -> Tail:
    """As far as it is scanned, and followed."""
    newest = look.index.known(max(look.index.sizes(), default=-1))
    if look.run.is_live or newest is None:
        return Tail(is_live=look.run.is_live, bytes=look.torn_bytes)
    entries = max(segment.next or 0 for segment in look.index.meta.segments)
    is_followed = look.is_followed or not look.unfollowed_bytes()
    phase = look.index.meta.followed.phase if is_followed and entries else ""
    return Tail(
        bytes=newest.torn_bytes, segment=newest.index, is_headless=bool(newest.torn_bytes) and _is_headless(newest),
        is_closed=phase == CLOSED, entries=entries, short_of=_short_of(look.run, entries, phase),
    )  # fmt: skip


def _is_headless(segment: Segment) -> bool:
    from broker.journal.format import parse_segment_head  # not for a mere look: it takes longer than the look

    head = parse_segment_head(segment.head)
    return head is None or head.index != segment.index


def _short_of(run: Run, entries: int, phase: str) -> str:
    """A cut has neither."""
    ended = json_of(run.directory / "summary.json").get("ended")
    if isinstance(ended, str) and (not entries or phase not in ("", CLOSED)):
        return f"its summary says (summary.json: {json.dumps(ended)})"
    checkpoint = max((int(path.stem) for path in checkpoint_paths(run.journal)), default=0)
    return f"its broker's checkpoint says ({checkpoint:,} entries)" if checkpoint > entries else ""


def life_of(run: Run, tail: Tail, phase: str) -> str:
    """How a run stands whose broker is not at work."""
    if run.manifest:
        return "a cut"
    if phase == CLOSED:
        return "the run has ended"
    if tail.short_of:
        return f"its broker is gone; the journal ends before the run did{f' (in phase {phase})' if phase else ''}"
    if not phase:
        return "its broker is gone; whether the run was at its end is not known"
    return f"its broker is gone, and the run was not at its end (phase {phase}): killed, or still to be resumed"


def tail_lines(tail: Tail) -> list[str]:
    """What there is to say of it."""
    said = []
    if tail.bytes:
        said.append(f"the last {tail.bytes:,} bytes are no whole commit: {_what_they_are(tail)}")
    if tail.short_of:
        behind = f"what was behind entry {tail.entries - 1:,}" if tail.entries else "all of it"
        said.append(f"the journal ends earlier than {tail.short_of}: {behind} is gone, and it was acknowledged")
    return said


def _what_they_are(tail: Tail) -> str:
    if tail.is_live:
        return "being written now"
    if tail.is_headless:
        return f"{tail.segment:08d}.log has no head, so nothing is known of what they were"
    if tail.short_of:
        return "damaged, or cut off by somebody"
    if tail.is_closed:
        return "put there by somebody, for the run had ended before"
    return "cut off when the broker died; nothing of it was acknowledged"
