"""The command `whatif`: the recorded events through the real core, another policy asked at each decision, what differs printed.

The recorded future is never changed: the recorded policy decides, the other only says what it would have. Where the broker left a
checkpoint, its state is compared with the fold's, so that a core that no longer decides as the recorded one is not mistaken for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from broker.core.actions import Note
from broker.core.settings import settings_from_config
from broker.journal import checkpoint as checkpoints
from broker.policy.registry import NAMES, choose
from schemas.config.overrides import parse_override
from schemas.edges import Role
from schemas.errors import ConfigError, JournalError
from schemas.messages import Deliver
from tools.records.bar import Bar
from tools.records.folding import encode_state, state_of
from tools.records.looking import Look
from tools.records.opening import Run, open_run
from tools.records.printing import printing, say
from tools.replay.asking import Asking, Constants, Decision
from tools.replay.configuration import replay_config
from tools.replay.recording import Moment, Recording
from tools.replay.selection import Wanted
from tools.replay.stretch import Stretch, stretch_of

WINDOW = "stages.rollout.max_running"
CONSTANTS = (
    *("schedule.kind", "schedule.max_lag", "schedule.steps", "schedule.groups_per_step"),
    *("schedule.members", "schedule.min_members", "schedule.drop_uniform", "schedule.max_refills"),
    *("broker.budget_bytes", WINDOW),
)
"""Keys that a decision depends on: all that may be set."""


class Dated(Struct, frozen=True):
    """A decision, and when it was made, over what."""

    number: int
    at: float
    subject: str
    decision: Decision


class Asked(Struct, frozen=True, kw_only=True):
    """The command line, as given; times are seconds of the run."""

    run: str
    policies: Sequence[str] = ()
    overrides: Sequence[str] = ()
    begin: float | None = None
    end: float | None = None
    as_json: bool = False


@printing
def run_whatif(asked: Asked) -> int:
    """The command's exit code. Raises ConfigError, JournalError."""
    names = named(asked.policies)
    if not names and not asked.overrides:
        raise ConfigError(f"whatif: nothing is otherwise; give --policy ({choices()}) or --set ({', '.join(CONSTANTS)})")
    with open_run(asked.run) as run:
        asking = Asking(choose(names), constants_of(run, asked.overrides))
        wanted = Wanted(begin=asked.begin, end=asked.end)
        bar = Bar()
        stretch = _stretch(run, wanted, bar)
        recording = Recording(run.journal, asking.policies, stretch.start, bar)
        counts: Counter[tuple[str, bool]] = Counter()
        for dated in _within(decisions(run, recording, asking), stretch, wanted):
            counts[dated.decision.kind, dated.decision.differs] += 1
            if dated.decision.differs:
                bar.clear()
                say(_json(dated) if asked.as_json else "\n".join(lines_of(dated)))
        bar.clear()
        for line in recording.told():
            print(f"tidemill: {line}", file=sys.stderr)
        if recording.state is None:
            raise JournalError(f"{asked.run}: no entry of its journal can be read, so there is no decision to ask about")
        if not asked.as_json:
            say("; ".join(f"{kind}: {counts[kind, False] + counts[kind, True]} decisions, {counts[kind, True]} differ" for kind in NAMES))
    return 0


def _within(found: Iterable[Dated], stretch: Stretch, wanted: Wanted) -> Iterator[Dated]:
    for dated in found:
        if stretch.is_over(dated.number, None):
            return
        if wanted.in_time(dated.at):
            yield dated


def _stretch(run: Run, wanted: Wanted, bar: Bar) -> Stretch:
    """The part of the journal that is read; a run that is wanted whole needs no index."""
    if wanted.is_everything:
        return Stretch()
    with Look(run, bar) as look:
        stretch = stretch_of(look, Role.ENV, wanted, ())
        bar.clear()
    return stretch


def named(policies: Sequence[str]) -> dict[str, str]:
    """`placement=least_in_flight` ... by decision. Raises ConfigError."""
    found = {}
    for text in policies:
        decision, _, name = text.partition("=")
        if name not in NAMES.get(decision, ()):
            raise ConfigError(f"--policy {text}: there are {choices()}")
        found[decision] = name
    return found


def choices() -> str:
    return ", ".join(f"{decision}={name}" for decision, names in NAMES.items() for name in names)


def constants_of(run: Run, overrides: Sequence[str]) -> Constants | None:
    """The recorded settings, and those with `overrides`. Raises ConfigError for a key that no decision depends on."""
    for text in overrides:
        key = ".".join(parse_override(text)[0])
        if key not in CONSTANTS:
            raise ConfigError(f"--set {text}: no decision depends on {key}; there are {', '.join(CONSTANTS)}")
    if not overrides:
        return None
    recorded, other = replay_config(run, ()), replay_config(run, overrides)
    keys = {".".join(parse_override(text)[0]) for text in overrides}
    window = other["stages"]["rollout"]["max_running"] if WINDOW in keys else None
    return Constants(settings_from_config(recorded), settings_from_config(other), window)


def decisions(run: Run, recording: Recording, asking: Asking) -> Iterator[Dated]:
    """All of a run, in order. `recording` folds with `asking`'s policies."""
    paths = {int(path.stem): path for path in checkpoints.paths(run.journal)}
    for moment in recording.moments():
        found, asking.decisions[:] = list(asking.decisions), []
        yield from _dated(moment, found)
        saved = checkpoints.read(paths[moment.number + 1]) if moment.number + 1 in paths else None
        known = state_of(saved.state) if saved is not None else None
        if saved is not None and (known is None or encode_state(recording.state) != encode_state(known)):
            recording.note = recording.note or (
                f"at entry {moment.number} the broker had another state than this version's fold gives: what it decided may be otherwise"
            )


def _dated(moment: Moment, found: list[Decision]) -> Iterator[Dated]:
    """A placement is over the turn that was then delivered, a verdict over the group that was then noted: in that order."""
    turns = iter([order.message for order in moment.orders if isinstance(order.message, Deliver) and order.message.header.queue == "turns"])
    groups = iter([action.numbers["group"] for action in moment.actions if isinstance(action, Note) and action.kind == "grouping"])
    for decision in found:
        subject = ""
        if decision.kind == "placement" and decision.recorded["replica"] is not None:
            turn = next(turns, None)
            subject = _turn(turn, moves=decision.differs) if turn is not None else ""
        elif decision.kind == "grouping":
            subject = f"group {next(groups, '?')}"
        yield Dated(moment.number, moment.now, subject, decision)


def _turn(order: Deliver, *, moves: bool) -> str:
    header = order.header
    again = f", {order.held_tokens} tokens of KV left behind" if moves and order.held_tokens else ""
    return f"turn {header.turn} of session {header.ticket}.{header.attempt}{again}"


def lines_of(dated: Dated) -> Iterator[str]:
    """A decision: when and over what, then what either set decides, with its scores."""
    decision = dated.decision
    over = f" {dated.subject}" if dated.subject else ""
    yield f"{dated.at:9.3f} s  entry {dated.number}  {decision.kind}{over}  [{_words(decision.view)}]"
    for who, decided, scores in (
        ("recorded", decision.recorded, decision.recorded_scores),
        ("other", decision.other, decision.other_scores),
    ):
        shown = {name: value for name, value in scores.items() if value is not None}
        yield f"{'':13}{who:<9} {_words(decided)};  scores {_words(shown)}"


def _words(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {each}" for name, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + " ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json(dated: Dated) -> str:
    return msgspec.json.encode(dated).decode()
