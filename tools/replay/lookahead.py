"""What has to be known of a recording before it is played: how turns were sampled, which versions that took, which tickets a step trained.

One pass over the journal's events, without the core: headers, and of actions their bodies.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from broker.core.events import Received, decode_event
from broker.core.settings import LEASE_SECONDS
from broker.journal import Position
from broker.journal.reading import Damage, Scan
from schemas.codec import decode_record
from schemas.messages import Commit
from schemas.records import Action
from tools.records.progress import Progress, Way, sizes_of
from tools.replay.pace import Spans, spans_of


class Turns(Struct):
    """By lease: `spans` of turns that were answered with an action, `refused` those with a failure; `versions` of their KV and tokens."""

    spans: dict[int, Spans] = field(default_factory=dict)
    versions: dict[int, frozenset[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


class Part(Struct, frozen=True, kw_only=True):
    """Where in a journal turns are looked for: from the commit at `start` on, up to entry `last` and as long behind it as a turn may be
    answered; None for the journal's own beginning and end."""

    journal: str
    start: Position | None = None
    last: int | None = None


def recorded_turns(part: Part, progress: Progress | None = None) -> Turns:
    """Of all replicas: leases are one broker's, so no two share one."""
    turns, over, journal = Turns(), None, Path(part.journal)
    way = Way(sizes_of(journal), progress)
    for entry in Scan(journal, part.start):
        if isinstance(entry, Damage) or b"commit" not in entry.event:
            continue
        way.say(entry.position.segment, entry.position.offset)
        if part.last is not None and entry.number > part.last:
            over = entry.now + LEASE_SECONDS if over is None else over
            if entry.now > over:
                break
        event = decode_event(entry.event)
        if isinstance(event, Received) and isinstance(event.message, Commit):
            _note(turns, event.message, entry.frames)
    return turns


def _note(turns: Turns, commit: Commit, frames: tuple[bytes, ...]) -> None:
    turns.refused.update(failure.lease for failure in commit.fails)
    if len(commit.puts) != 1 or commit.puts[0].queue != "actions" or not commit.acks or not frames:
        return
    action = decode_record(Action, frames)
    if action.sample_spans:
        turns.spans[commit.acks[0]] = spans_of(action.sample_spans)
        turns.versions[commit.acks[0]] = frozenset(span.version for span in (*action.sample_spans, *action.kv_spans))
