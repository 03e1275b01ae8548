"""Cutting: everything that bears on one id, in one file that opens like a run directory.

    out.tide = zip of  manifest.json    what was cut from where, what was left out, what was blanked
                       config.json, schema.lock, tokenizer.json   as in the run (the tokenizer not where text is blanked)
                       journal/00000000.log                       entries from the id's first to its last, all of their events
                       journal/N.checkpoint                       the broker's state before the first

All events in between are kept, for the core folds them; frames are kept of records of the id, of versions and installs. Of a run that
cannot be folded, only the entries of the id are kept.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from broker.core.events import encode_event
from broker.core.state import State
from broker.journal import Checkpoint, Contents, Entry, Position
from broker.journal import checkpoint as checkpoints
from broker.journal import format as layout
from schemas.errors import ConfigError, JournalError, WireError
from tools.records import redaction
from tools.records.folding import Folded, encode_state
from tools.records.looking import Look
from tools.records.rows import MADE, read_event
from tools.records.selection import Selection
from tools.records.story import Subject
from tools.records.telling import Story, Walk, selection_of, tell
from tools.records.words import tokenizer_of

FORMAT = 1
BATCH_BYTES = 1 << 20
ALWAYS_FRAMED = frozenset({"versions", "installs"})
"""Records without text, which replaying a stage needs whatever it is about."""

Kept = tuple[Entry, Folded | None]


class Piece(Struct, kw_only=True):
    """What is cut out. `state` is the broker's before the first entry; None where that is not known."""

    entries: list[Entry]
    state: State | None
    now: float
    installs: dict[int, tuple[bytes, ...]]
    """Frames of records that the state still holds, by message."""
    framed: int


def cut(look: Look, subject: Subject, path: Path, *, redact: bool) -> dict[str, Any]:
    """Writes the file; returns its manifest. Raises ConfigError where nothing of the subject is recorded or the file cannot be written."""
    if path.exists():
        raise ConfigError(f"{path}: is there already; choose another name")
    story = tell(look, subject)
    piece = _piece(look, story, redact=redact)
    manifest = _manifest(look, subject, piece, redact=redact)
    try:
        _write(look, path, piece, manifest)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return manifest


def _manifest(look: Look, subject: Subject, piece: Piece, *, redact: bool) -> dict[str, Any]:
    blanked = redact or bool(look.run.manifest.get("redacted"))
    return {
        "format": FORMAT, "run": look.run.manifest.get("run", look.run.name), "around": str(subject), "first": piece.entries[0].number,
        "last": piece.entries[-1].number, "entries": len(piece.entries), "framed": piece.framed, "folds": piece.state is not None,
        "redacted": blanked, "blanked": list(redaction.BLANKED) if blanked else [],
    }  # fmt: skip


# --- which entries -----------------------------------------------------------------------------------------------------------------


def _piece(look: Look, story: Story, *, redact: bool) -> Piece:
    wanted = {int(number) for number in look.all_rows(selection_of(story.scope.subject))["number"]}
    last = max(story.scope.last, story.facts[-1].number if story.facts else 0)
    first = min([story.scope.first, *(fact.number for fact in story.facts[:1])])
    walk = Walk(look, first, want_frames=True)
    state: State | None = None
    entries: list[Entry] = []
    now, framed = 0.0, 0
    for entry, folded in _from(walk, first):
        if not entries:
            state, now = walk_state(walk.before), entry.now
        if state is None and entry.number not in wanted:
            continue
        keeps = entry.number in wanted or _is_always_framed(entry)
        kept = entry if keeps and entry.frames_whole else msgspec.structs.replace(entry, frames=())
        entries.append(_redacted(kept, folded) if redact else kept)
        framed += bool(kept.frames)
        if entry.number >= last:
            break
    if not entries:
        raise JournalError("the entries that the index speaks of are gone from the journal")
    installs = _installs(look, state, entries[0].number) if state is not None else {}
    shown = redaction.redact_state(state) if redact and state is not None else state
    return Piece(entries=entries, state=shown, now=now, installs=installs, framed=framed)


def _from(walk: Walk, first: int) -> Iterator[Kept]:
    """The walk's entries from `first` on; `walk.before` is the state before that."""
    walk.stop_before = first
    return (kept for kept in walk if kept[0].number >= first)


def walk_state(data: bytes | None) -> State | None:
    """The state as it was then."""
    return msgspec.msgpack.decode(data, type=State) if data is not None else None


def _is_always_framed(entry: Entry) -> bool:
    message = read_event(entry.event).message
    return message is not None and any(put.queue in ALWAYS_FRAMED for put in message.puts)


def _redacted(entry: Entry, folded: Folded | None) -> Entry:
    if folded is None:
        raise ConfigError(f"entry {entry.number} is of another version: what in it is text is not known, so it cannot be redacted")
    try:
        event, frames = redaction.redact_event(folded.event, entry.frames)
    except (WireError, KeyError) as error:
        raise ConfigError(f"entry {entry.number} cannot be redacted: {error}") from error
    return msgspec.structs.replace(entry, event=encode_event(event), frames=tuple(frames))


def _installs(look: Look, state: State, first: int) -> dict[int, tuple[bytes, ...]]:
    """Install records that the state holds, from the rows before the first entry."""
    held = {install.number: install.message for install in state.installs.values()}
    found = {}
    for block in look.rows(Selection(queue="installs")):
        for row in block[(block["number"] < first) & (block["flags"] & MADE == 0)]:
            if int(row["newest"]) in held:
                found[held[int(row["newest"])]] = _frames(look, Position(int(row["segment"]), int(row["offset"])))
    return {message: frames for message, frames in found.items() if frames}


def _frames(look: Look, position: Position) -> tuple[bytes, ...]:
    from broker.journal.reading import entry_at

    try:
        return entry_at(look.run.journal, position).frames
    except JournalError:
        return ()


# --- the file ----------------------------------------------------------------------------------------------------------------------


def _write(look: Look, path: Path, piece: Piece, manifest: dict[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", json.dumps(manifest, indent=2) + "\n")
            _write_run(look, archive.write, manifest)
            archive.writestr("journal/00000000.log", b"".join(segment_of(piece.entries)))
            if piece.state is not None:
                archive.writestr(f"journal/{piece.entries[0].number:016d}.checkpoint", checkpoint_of(piece))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _write_run(look: Look, write: Callable[[Path, str], None], manifest: dict[str, Any]) -> None:
    for name in ("config.json", "schema.lock"):
        if (look.run.directory / name).is_file():
            write(look.run.directory / name, name)
    tokenizer = tokenizer_of(look.run)
    if tokenizer is not None and not manifest["redacted"]:
        write(tokenizer, "tokenizer.json")


def checkpoint_of(piece: Piece) -> bytes:
    """The state before the first entry, as the journal's checkpoints are written."""
    made = Checkpoint(number=piece.entries[0].number, now=piece.now, position=Position(0, layout.BLOCK), state=encode_state(piece.state),
                      arena=Contents(placed={}, inline=piece.installs))  # fmt: skip
    body = msgspec.msgpack.encode(made)
    return checkpoints.HEAD.pack(checkpoints.MAGIC, checkpoints.FORMAT, len(body), layout.digest(body, 0)) + body


def segment_of(entries: list[Entry]) -> Iterator[bytes]:
    """A segment that holds these entries under their own numbers; where numbers are left out, a commit ends."""
    yield layout.encode_segment_head(layout.SegmentHead(0, entries[0].number, 1, 0))
    previous = 0
    for batch in _batches(entries):
        data, previous = _batch(batch, previous)
        yield data


def _batches(entries: list[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if batch and (size > BATCH_BYTES or entry.number != batch[-1].number + 1):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += layout.entry_bytes(entry.event, entry.frames)
    if batch:
        yield batch


def _batch(entries: list[Entry], previous: int) -> tuple[bytes, int]:
    size = sum(layout.entry_bytes(entry.event, entry.frames) for entry in entries)
    buffer = memoryview(bytearray(layout.batch_bytes(size, len(entries))))
    rows, at = [], layout.BATCH_HEAD.size
    for entry in entries:
        row = layout.put_entry(buffer, at, entry.number, entry.now, entry.event, entry.frames)
        rows.append(row)
        at += row[0]
    head = layout.seal_batch(buffer, entries[0].number, size, rows, 1, previous)
    return bytes(buffer), head.checksum
