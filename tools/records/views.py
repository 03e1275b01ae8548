"""What is shown: lines of text from rows, records, conversations and the index. Pure; colours only where they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.records.index import Index
from tools.records.rows import DAMAGED, EVAL, MADE, REFUSED, TRUNCATED, UNSURE
from tools.records.tables import FailureRow, Meta
from tools.records.tail import Tail, tail_lines
from tools.records.words import harmless

if TYPE_CHECKING:
    from tools.records.ending import Ending
    from tools.records.episode import Conversation, Piece, Token
    from tools.records.record import Opened

FLAG_WORDS = (
    (REFUSED, "refused"),
    (EVAL, "eval"),
    (TRUNCATED, "truncated"),
    (DAMAGED, "damaged"),
    (MADE, "by-broker"),
    (UNSURE, "unjudged"),
)
DIM, BOLD, RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"
SHOWN_DAMAGES = 20
UNFOLLOWED = (
    "not followed through the broker's core yet: failures are not counted, refused records not told from others, tickets not"
    " listed; `--failed` follows it, once, and keeps what it finds"
)
SHOWN_VALUES = 12
"""Of an array in one record's view; `--json` shows all."""


def counted(count: int, one: str, many: str = "") -> str:
    """`1 segment`, `1,000 segments`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


# --- rows ------------------------------------------------------------------------------------------------------------------------


COUNTS = ("ticket", "group", "member", "attempt", "turn", "oldest", "newest", "tokens")


def row_fields(row: np.ndarray, meta: Meta) -> dict[str, Any]:
    """A row as a JSON object; absent fields are left out."""
    known = dict(zip(row.dtype.names or (), row.item(), strict=True))
    fields: dict[str, Any] = {
        "record": f"{known['number']}.{known['part']}", "at": round(known["at"], 6), "queue": _name(meta.queues, known["queue"]),
        "client": _name(meta.clients, known["client"]), "bytes": known["bytes"],
    }  # fmt: skip
    fields |= {name: known[name] for name in COUNTS if known[name] >= 0}
    for name in ("reward", "took"):
        if not math.isnan(known[name]):
            fields[name] = known[name] if name == "reward" else round(known[name], 6)
    flags = [word for flag, word in FLAG_WORDS if known["flags"] & flag]
    return {**fields, "flags": flags} if flags else fields


def _name(names: list[str], place: int) -> str:
    return names[place] if place < len(names) else "?"


def row_line(fields: Mapping[str, Any]) -> str:
    """One line a record."""
    session = f"{fields['ticket']}.{fields['attempt']}" if "attempt" in fields else str(fields.get("ticket", ""))
    versions = {fields[name] for name in ("oldest", "newest") if name in fields}
    spoke = f"v{'-'.join(map(str, sorted(versions)))}" if versions else ""
    parts = (
        f"{fields['record']:>10}", f"{fields['at']:>10.3f} s", f"{fields['queue']:<9}", f"{session:>9}",
        f"g{fields['group']:<5}" if "group" in fields else " " * 6, f"turn {fields['turn']:<3}" if "turn" in fields else " " * 8,
        f"{fields['tokens']:>6} tok" if "tokens" in fields else " " * 10, f"{spoke:<7}",
        f"r {fields['reward']:<7.4g}" if "reward" in fields else " " * 9, f"{size_text(fields['bytes']):>9}",
        f"{fields['took']:>8.3f} s" if "took" in fields else " " * 10, fields["client"],
        " ".join(fields.get("flags", ())),
    )  # fmt: skip
    return "  ".join(parts).rstrip()


def failure_line(failure: FailureRow) -> str:
    """One line a failure."""
    session = f"{failure.ticket}.{failure.attempt}" if failure.attempt is not None else f"{failure.ticket}"
    what = "ticket ended" if failure.final else f"{failure.queue} under {failure.client}"
    group = f"g{failure.group}" if failure.group is not None else ""
    took = f"{failure.seconds:>8.3f} s" if failure.seconds is not None else " " * 10
    return f"{failure.number:>10}  {failure.at:>10.3f} s  {session:>9}  {group:<6}  {took}  {what}: {harmless(failure.reason)}"


# --- the overview ------------------------------------------------------------------------------------------------------------------


def first_line(name: str, sizes: Mapping[int, int], *, live: bool) -> str:
    """What is known at once."""
    return f"{name}: {size_text(sum(sizes.values()))} in {counted(len(sizes), 'segment')}" + ("; its broker is at work" if live else "")


def overview(index: Index, order: list[str]) -> Iterator[str]:
    """Queues, and how much there is."""
    segments, totals = index.meta.segments, index.totals()
    began = segments[0].began if segments else 0.0
    ended = segments[-1].ended if segments else 0.0
    yield f"{counted(sum(segment.entries for segment in segments), 'entry', 'entries')}, {began:.1f} to {ended:.1f} s"
    yield ""
    yield f"{'queue':<10} {'records':>10} {'bytes':>10} {'first':>11} {'last':>11} {'refused':>8}"
    for queue in sorted(totals, key=lambda queue: (order.index(queue) if queue in order else len(order), queue)):
        of = totals[queue]
        yield f"{queue:<10} {of.records:>10,} {size_text(of.bytes):>10} {of.first:>9.3f} s {of.last:>9.3f} s {of.refused or '':>8}"
    yield ""
    others = {kind: count for kind, count in events_of(index.meta).items() if kind not in ("commit", "tick", "heartbeat")}
    yield "other events: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(others.items()))


def events_of(meta: Meta) -> dict[str, int]:
    """How many of each kind."""
    found: dict[str, int] = {}
    for segment in meta.segments:
        for kind, count in segment.events.items():
            found[kind] = found.get(kind, 0) + count
    return found


def ending_lines(ending: Ending) -> Iterator[str]:
    """What became of it."""
    if ending.step:
        yield f"steps: {ending.step}"
    if ending.endings:
        yield "tickets ended: " + ", ".join(f"{name} {count:,}" for name, count in sorted(ending.endings.items()))
    if ending.failures:
        yield failures_line(ending.failures, ending.failed_tickets)


def failures_line(count: int, tickets: int) -> str:
    """How many there were: tickets that ended failed, and tries at a record, three for each of most."""
    tries = counted(count - tickets, "failed try", "failed tries")
    return f"failures: {tries}, {counted(tickets, 'failed ticket')} (`--failed` lists them)" if count else "failures: none"


def warnings(index: Index, tail: Tail, *, manifest: Mapping[str, Any]) -> Iterator[str]:
    """What is missing or damaged, one thing a line."""
    meta, gone = index.meta, index.gone
    if manifest:
        yield manifest_line(manifest)
    for first, last in index.gaps():
        if not _is_meant(first, manifest):
            yield f"missing: entries {first:,} to {last:,}, whole segments: dropped by the quota (broker.journal_quota_bytes), or removed"
    for first, last in (gap for segment in meta.segments for gap in segment.missing):
        if not _is_meant(first, manifest):
            yield f"missing: entries {first:,} to {last:,}"
    for first, last in index.holes():
        named = f"segment {first:08d} is" if first == last else f"segments {first:08d} to {last:08d} are"
        yield f"missing: {named} not there, and what comes behind is damaged"
    if gone:
        named = ", ".join(f"{index:08d}" for index in gone)
        yield f"missing: segments {named} were dropped since they were indexed: their headers are still listed, their frames are gone"
    damages = [damage for segment in meta.segments for damage in segment.damages if not (manifest and "gone" in damage)]
    yield from (f"damage: {damage}" for damage in damages[:SHOWN_DAMAGES])
    if len(damages) > SHOWN_DAMAGES:
        yield f"damage: and {len(damages) - SHOWN_DAMAGES} more"
    unreadable = sum(segment.unreadable for segment in meta.segments)
    if unreadable:
        yield f"unreadable: {counted(unreadable, 'event is', 'events are')} not msgpack maps with a type"
    yield from tail_lines(tail)
    if meta.followed.note:
        yield f"not followed all the way: {meta.followed.note}"


def _is_meant(first: int, manifest: Mapping[str, Any]) -> bool:
    """A cut begins in mid-run; one that does not fold has gaps as well."""
    return bool(manifest) and (first == 0 or not manifest.get("folds"))


def manifest_line(manifest: Mapping[str, Any]) -> str:
    """Of a cut file."""
    redacted = "; tokens, texts and reasons are blanked" if manifest.get("redacted") else ""
    return (f"cut of {manifest.get('run')} around {manifest.get('around')}: entries {manifest.get('first')} to {manifest.get('last')}, "
            f"frames of {manifest.get('framed')} of them{redacted}")  # fmt: skip


# --- one record --------------------------------------------------------------------------------------------------------------------


def record_lines(record: Opened, words: Any) -> Iterator[str]:
    """Header, body and arrays."""
    yield f"record {record.number}.{record.part}: {record.tag} at {record.at:.6f} s, from {record.sender}"
    for remark in record.remarks:
        yield f"  note: {remark}"
    if record.unknown:
        yield f"  unknown fields: {', '.join(record.unknown)}"
    if record.absent:
        yield f"  fields that this version expects and the record lacks: {', '.join(record.absent)}"
    for title, fields in (("header", record.header), ("body", record.body)):
        yield f"{title}:"
        yield from (f"  {name}: {value!r}" for name, value in fields.items() if not (title == "body" and name == "type"))
    yield "arrays:"
    for name, array in record.arrays.items():
        shown = " ".join(f"{value:.4g}" if array.dtype.kind == "f" else str(value) for value in array[:SHOWN_VALUES].tolist())
        yield f"  {name}: {array.dtype.str}[{len(array)}] {shown}{' …' if len(array) > SHOWN_VALUES else ''}"
    if words is not None and "tokens" in record.arrays:
        yield "text:"
        yield f"  {''.join(words(int(token)) for token in record.arrays['tokens'])!r}"


# --- a conversation ----------------------------------------------------------------------------------------------------------------


def conversation_lines(talk: Conversation, *, coloured: bool) -> Iterator[str]:
    """A head, then each side's text, then its tokens."""
    yield f"session {talk.ticket}.{talk.attempt} of group {talk.group}, from its {talk.source}" + (" (truncated)" if talk.truncated else "")
    yield from (f"note: {remark}" for remark in talk.remarks)
    if talk.task is not None:
        yield f"task: {talk.task}"
    for piece in talk.pieces:
        yield ""
        yield _paint(f"── turn {piece.turn} · {piece.who} · {len(piece.tokens)} tokens", BOLD, coloured)
        yield _text(piece, coloured=coloured)
        yield from (_token_line(token, coloured=coloured) for token in piece.tokens)
    yield ""
    if talk.outcome is not None:
        yield f"outcome: {talk.outcome}"
    parts = ", ".join(f"{name} {value:g}" for name, value in talk.reward_parts.items())
    yield f"reward: {'none yet' if talk.reward is None else f'{talk.reward:g}'}" + (f" ({parts})" if parts else "")
    yield f"trained in step: {talk.step}" if talk.step is not None else "in no step plan"


def _text(piece: Piece, *, coloured: bool) -> str:
    words = (f"⟨{token.id}⟩" if token.text is None else harmless(token.text) for token in piece.tokens)
    return "".join(_paint(word, _colour(token), coloured) for word, token in zip(words, piece.tokens, strict=True))


def _colour(token: Token) -> str:
    """The likelier the policy found it, the greener; what it did not say is dim."""
    if not token.sampled or token.logprob is None:
        return DIM
    return "\x1b[32m" if token.logprob > -0.5 else "\x1b[33m" if token.logprob > -2.0 else "\x1b[31m"


def _token_line(token: Token, *, coloured: bool) -> str:
    shown = f"{token.position:>6} {token.id:>7} {token.text!r:<14}" if token.text is not None else f"{token.position:>6} {token.id:>7}"
    if not token.sampled:
        return _paint(f"{shown} not sampled", DIM, coloured)
    advantage = (
        "no advantage" if token.advantage is None else f"advantage {token.advantage:+.4f}" + (" masked: too old" if token.masked else "")
    )
    version = f"v{token.version}" if token.version is not None else "v?"
    return _paint(f"{shown} sampled  logprob {token.logprob:8.4f}  {version:<5} {advantage}", _colour(token), coloured)


def _paint(text: str, colour: str, coloured: bool) -> str:
    return f"{colour}{text}{RESET}" if coloured else text
