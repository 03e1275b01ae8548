"""The command `whatif`: the recorded events through the real core, another policy asked at each decision, what differs printed.

The recorded future is never changed: the recorded policy decides, the other only says what it would have. Where the broker left a
checkpoint, its state is compared with the fold's, so that a core that no longer decides as the recorded one is not mistaken for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from broker.core.actions import Note
from broker.core.settings import Settings, settings_from_config
from broker.journal import checkpoint as checkpoints
from broker.policy.registry import NAMES, choose
from schemas.config.overrides import parse_override
from schemas.errors import ConfigError
from schemas.messages import Deliver
from tools.records.opening import Run, open_run
from tools.replay.asking import Asking, Decision
from tools.replay.recording import Moment, Recording
from tools.replay.staging import replay_config

CONSTANTS = (
    *("schedule.kind", "schedule.max_lag", "schedule.steps", "schedule.groups_per_step"),
    *("schedule.min_members", "schedule.drop_uniform", "schedule.max_refills"),
)
"""Keys that a decision depends on: all that may be set."""


class Dated(Struct, frozen=True):
    """A decision, and when it was made, over what."""

    number: int
    at: float
    subject: str
    decision: Decision


def run_whatif(run: str, policies: Sequence[str], overrides: Sequence[str], *, as_json: bool) -> int:
    """The command's exit code. Raises ConfigError, JournalError."""
    names = named(policies)
    if not names and not overrides:
        raise ConfigError(f"whatif: nothing is otherwise; give --policy ({choices()}) or --set ({', '.join(CONSTANTS)})")
    with open_run(run) as opened:
        asking = Asking(choose(names), constants_of(opened, overrides))
        recording = Recording(opened.journal, asking.policies)
        asked: Counter[str] = Counter()
        differ: Counter[str] = Counter()
        for dated in decisions(opened, recording, asking):
            asked[dated.decision.kind] += 1
            if dated.decision.differs:
                differ[dated.decision.kind] += 1
                print(_json(dated) if as_json else line_of(dated))
        if recording.note:
            print(f"tidemill: {recording.note}", file=sys.stderr)
        if not as_json:
            print("; ".join(f"{kind}: {asked[kind]} decisions, {differ[kind]} differ" for kind in NAMES))
    return 0


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


def constants_of(run: Run, overrides: Sequence[str]) -> Settings | None:
    """The recorded settings with `overrides`. Raises ConfigError for a key that no decision depends on."""
    for text in overrides:
        key = ".".join(parse_override(text)[0])
        if key not in CONSTANTS:
            raise ConfigError(f"--set {text}: no decision depends on {key}; there are {', '.join(CONSTANTS)}")
    return settings_from_config(replay_config(run, overrides, None)) if overrides else None


def decisions(run: Run, recording: Recording, asking: Asking) -> Iterator[Dated]:
    """All of a run, in order. `recording` folds with `asking`'s policies."""
    paths = {int(path.stem): path for path in checkpoints.paths(run.journal)}
    encode = msgspec.msgpack.Encoder().encode
    for moment in recording.moments():
        found, asking.decisions[:] = list(asking.decisions), []
        yield from _dated(moment, found)
        saved = checkpoints.read(paths[moment.number + 1]) if moment.number + 1 in paths else None
        if saved is not None and encode(recording.state) != saved.state:
            recording.note = recording.note or (
                f"at entry {moment.number} the broker had another state than this version's fold gives: it decided otherwise"
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


def line_of(dated: Dated) -> str:
    """A decision in one line."""
    decision = dated.decision
    over = f" {dated.subject}" if dated.subject else ""
    return (
        f"{dated.at:9.3f} s  entry {dated.number}  {decision.kind}{over}: recorded {_words(decision.recorded)},"
        f" other {_words(decision.other)}  [{_words(decision.view)}]"
    )


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
