"""The commands `inspect`, `story` and `cut`: open, look, print.

Exit codes: 0; 2 for bad input (by ConfigError), 1 for what is damaged, or where stdout takes no more."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from schemas.edges import EDGES
from schemas.errors import ConfigError, JournalError
from tools.records import selection, views
from tools.records.bar import Bar
from tools.records.looking import Look
from tools.records.opening import Run, open_run
from tools.records.printing import printing, quietly, say, written
from tools.records.rows import ROW
from tools.records.selection import Selection
from tools.records.tables import FailureRow
from tools.records.tail import life_of, tail_of

DAMAGED = 1
LONG_BYTES = 128 << 20
"""To index so much takes a second or so: it is announced."""
SEGMENT_FIELDS = ("index", "first", "entries", "began", "ended")


def is_coloured() -> bool:
    """Colours are for terminals, unless somebody forbids or forces them."""
    return not os.environ.get("NO_COLOR") and (sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")))


@printing
def run_inspect(text: str, wanted: Selection, *, record: str, episode: str, slowest: int, as_json: bool) -> int:
    """One view: a record, an episode, failures, records, or the whole."""
    bar = Bar()
    with open_run(text) as run, Look(run, bar) as look:
        try:
            if record:
                return _record(look, record, bar, as_json=as_json)
            if episode:
                return _episode(look, episode, bar, as_json=as_json)
            if wanted.is_empty and not slowest:
                return _overview(run, look, bar, as_json=as_json)
            if wanted.queue is not None:
                if wanted.queue not in EDGES:
                    look.scan()
                selection.check_queue(wanted.queue, look.index.meta.queues)
            if wanted.stage is not None:
                selection.queues_of_stage(wanted.stage)
            if slowest:
                return _slowest(look, wanted, slowest, bar, as_json=as_json)
            return _failures(look, wanted, bar, as_json=as_json) if wanted.failed else _rows(look, wanted, bar, as_json=as_json)
        finally:
            bar.clear()


def _record(look: Look, text: str, bar: Bar, *, as_json: bool) -> int:
    from tools.records import record
    from tools.records.words import words_of

    number, _, part = text.partition(".")
    try:
        found = look.record(selection.number_of(number, "record"), selection.number_of(part or "0", "record's part"))
    except JournalError as error:
        print(f"tidemill: {error}", file=sys.stderr)
        return DAMAGED
    if as_json:
        return quietly([json.dumps(record.as_json(found), default=repr)], bar)
    return quietly(views.record_lines(found, words_of(look.run)), bar)


def _episode(look: Look, text: str, bar: Bar, *, as_json: bool) -> int:
    from tools.records.conversing import conversation

    talk = conversation(look, *selection.session_of(text))
    if as_json:
        return quietly([json.dumps(to_builtins(talk), default=repr)], bar)
    return quietly(views.conversation_lines(talk, coloured=is_coloured()), bar)


def _overview(run: Run, look: Look, bar: Bar, *, as_json: bool) -> int:
    live = run.is_live
    if as_json:
        return quietly([json.dumps(_overview_fields(run, look, live=live))], bar)

    def lines() -> Iterator[str]:
        yield views.first_line(run.name, look.index.sizes(), live=live)
        _announce(look)
        from tools.records.ending import ending_of

        look.scan()
        ending = ending_of(look)
        yield from views.overview(look.index, list(EDGES))
        yield from views.ending_lines(ending)
        if not ending.is_whole and not look.index.writes:
            yield views.UNFOLLOWED
        tail = tail_of(look)
        if not live:
            yield life_of(run, tail, ending.phase)
        yield from views.warnings(look.index, tail, manifest=run.manifest)

    if written(lines(), bar):
        _follow_behind(look, bar)
    return 0


def _announce(look: Look) -> None:
    """Says that a long first look begins, or goes on where one was broken off."""
    left, total = sum(look.index.unscanned().values()), sum(look.index.sizes().values())
    if left > LONG_BYTES:
        known = f"; it goes on, {views.size_text(total - left)} are in it" if look.index.meta.segments else ""
        print(f"tidemill: making the index of {views.size_text(total)}, once{known}", file=sys.stderr)


def _follow_behind(look: Look, bar: Bar) -> None:
    """What stories, failures and steps are looked up in is made once, behind the overview; who does not want to wait for it ends it."""
    if look.is_followed or not look.index.writes or not look.unfollowed_bytes():
        return
    known = look.index.meta.followed
    goes_on = f" (it goes on, from entry {known.next_number:,})" if known.next_number else ""
    print(
        f"tidemill: following what the broker did, once{goes_on}, for stories, failures and steps; Ctrl-C leaves the rest to the first who"
        " needs it",
        file=sys.stderr,
    )
    try:
        look.follow()
    except KeyboardInterrupt:
        bar.clear()
        say(f"{views.UNFOLLOWED} (up to entry {look.index.meta.followed.next_number:,} it was)")
        return
    known = look.index.meta.followed
    failures = views.failures_line(len(known.failures), sum(failure.final for failure in known.failures))
    written([failures, *([f"not followed all the way: {known.note}"] if known.note else [])], bar)


def _overview_fields(run: Run, look: Look, *, live: bool) -> dict[str, Any]:
    from tools.records.ending import ending_of

    look.scan()
    ending, meta = ending_of(look), look.index.meta
    said = list(views.warnings(look.index, tail_of(look), manifest=run.manifest))
    missing = sorted([*look.index.gaps(), *(gap for part in meta.segments for gap in part.missing)])
    return {
        "run": run.name, "live": live, "phase": ending.phase, "bytes": sum(look.index.sizes().values()),
        "queues": to_builtins(look.index.totals()),
        "segments": [{name: getattr(part, name) for name in SEGMENT_FIELDS} for part in meta.segments],
        "events": views.events_of(meta), "followed": ending.is_whole, "endings": ending.endings, "step": ending.step,
        "failures": ending.failures, "failed_tickets": ending.failed_tickets, "missing": missing,
        "damage": [damage for part in meta.segments for damage in part.damages],
        "torn_bytes": look.torn_bytes, "said": said, "manifest": run.manifest,
    }  # fmt: skip


def _rows(look: Look, wanted: Selection, bar: Bar, *, as_json: bool) -> int:
    def lines() -> Iterable[str]:
        for block in look.rows(wanted):
            yield from _lines_of(look, block, as_json=as_json)

    code = quietly(lines() if as_json else _or_none(lines(), "no such records"), bar)
    bar.clear()
    _say(look)
    return code


def _or_none(lines: Iterable[str], none: str) -> Iterator[str]:
    """The lines; `none` where there is none, so that silence is no answer."""
    nothing = True
    for line in lines:
        nothing = False
        yield line
    if nothing:
        yield none


def _lines_of(look: Look, rows: np.ndarray, *, as_json: bool) -> Iterator[str]:
    for row in rows:
        fields = views.row_fields(row, look.index.meta)
        yield json.dumps(fields) if as_json else views.row_line(fields)


def _slowest(look: Look, wanted: Selection, count: int, bar: Bar, *, as_json: bool) -> int:
    """Those that took longest to make, the longest first."""
    look.catch_up()
    names = list(enumerate(look.index.meta.queues))
    made = [place for place, queue in names if wanted.stage in (None, EDGES[queue].producer if queue in EDGES else None)]
    slowest = np.empty(0, ROW)
    for rows in look.rows(wanted):
        timed = rows[~np.isnan(rows["took"]) & np.isin(rows["queue"], made)]  # what a stage takes was made by others
        both = np.concatenate([slowest, timed])
        slowest = both[np.argsort(-both["took"], kind="stable")][:count]
    if written(_lines_of(look, slowest, as_json=as_json), bar):
        _say(look)
    return 0


def _failures(look: Look, wanted: Selection, bar: Bar, *, as_json: bool) -> int:
    def found() -> Iterator[FailureRow]:
        if wanted.step is not None:
            look.follow_step(wanted.step)
        yield from list(look.index.meta.followed.failures)
        yield from look.new_failures()

    def lines() -> Iterator[str]:
        for failure in found():
            if selection.fits(failure, wanted, look.index.meta):
                yield json.dumps(to_builtins(failure)) if as_json else views.failure_line(failure)

    code = quietly(lines() if as_json else _or_none(lines(), "nothing failed"), bar)
    bar.clear()
    _say(look)
    return code


def _say(look: Look) -> None:
    """What a list cannot show goes to stderr."""
    for line in views.warnings(look.index, tail_of(look), manifest={}):
        print(f"tidemill: {line}", file=sys.stderr)
    if not look.is_followed and look.unfollowed_bytes():
        number = look.index.meta.followed.next_number
        print(
            f"tidemill: from entry {number:,} on the run was not followed yet: what the broker refused is not told from the rest, and how"
            " long things took is not known (`--slowest 10` or `--failed` follows it, once)",
            file=sys.stderr,
        )


@printing
def run_story(text: str, run_text: str, *, trace: str, as_json: bool) -> int:
    """The life of one thing, as a table or a trace."""
    from tools.records import story, telling
    from tools.records.trace import trace_of

    subject, bar = story.subject_of(text), Bar()
    with open_run(run_text) as run, Look(run, bar) as look:
        told = telling.tell(look, subject)
        bar.clear()
        if told.note:
            print(f"tidemill: {told.note}", file=sys.stderr)
        used = telling.usage(look, subject.id) if subject.kind == "version" else []
    if trace:
        _write(trace, json.dumps(trace_of(told.facts)))
    if as_json:
        body = {"subject": str(subject), "facts": to_builtins(told.facts), "summary": to_builtins(story.summary(told.facts)),
                "used_by": dict(used), "note": told.note}  # fmt: skip
        return quietly([json.dumps(body)])
    return quietly([*story.lines(subject, told.facts), *(story.usage_lines(subject.id, used) if subject.kind == "version" else ())])


def _write(path: str, text: str) -> None:
    """Raises ConfigError where it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


@printing
def run_cut(run_text: str, around: str, path: str, *, redact: bool) -> int:
    """Everything that bears on one id, in one file."""
    from tools.records import cutting, story

    subject, bar = story.subject_of(around), Bar()
    with open_run(run_text) as run, Look(run, bar) as look:
        manifest = cutting.cut(look, subject, Path(path), redact=redact)
        bar.clear()
    say(f"{path}: {views.manifest_line(manifest)}; {views.size_text(Path(path).stat().st_size)}")
    if not manifest["folds"]:
        print("tidemill: the run cannot be folded by this version: only the id's own entries are in the file", file=sys.stderr)
    return 0
