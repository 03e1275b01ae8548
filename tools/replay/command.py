"""The command `replay`: opens a run, plays one role of it, compares.

Exit codes: 0; 1 where an answer differs (--diff); 2 for what cannot be played, weights that are gone
(`version_gone`) among it; 1, too, where stdout takes no more."""

from __future__ import annotations

import bdb
import math
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from broker.journal import Position
from schemas.edges import STAGES, Role
from schemas.errors import ConfigError, TidemillError
from schemas.messages import Welcome
from tools.records.bar import Bar
from tools.records.looking import Look
from tools.records.opening import Run, open_run
from tools.records.printing import printing, say
from tools.records.words import words_of
from tools.replay.configuration import replay_config, with_code, with_model
from tools.replay.debugging import Debugger
from tools.replay.lookahead import Part, Turns, recorded_turns
from tools.replay.output import Output, check_output
from tools.replay.player import Player
from tools.replay.process import ProcessStand
from tools.replay.recording import Recording
from tools.replay.report import Tally, context, summary
from tools.replay.selection import Wanted, wanted_of
from tools.replay.staging import Scratch, make_stage
from tools.replay.stand import Stand
from tools.replay.stretch import Stretch, stretch_of
from tools.replay.weights import apart

DIFFERENT = 1
ALONE = (Role.REWARD, Role.ENV, Role.REFERENCE)
"""Stages that answer each record by itself, so that its time can be taken."""
UNHURRIED = ("stages.env.turn_deadline_s=1e6", "stages.env.episode_deadline_s=1e6")
"""Settings under a debugger: who looks at a step takes longer than the step."""


class Asked(Struct, frozen=True, kw_only=True):
    """The command line, as given."""

    run: str
    stage: str
    only: str = ""
    begin: float | None = None
    end: float | None = None
    speed: str = "max"
    overrides: tuple[str, ...] = ()
    code: Path | None = None
    diff: bool = False
    in_process: bool = False
    debug: bool = False
    output: Path | None = None
    slowest: int = 0


@printing
def run_replay(asked: Asked) -> int:
    """The command's exit code. Raises ConfigError, VersionGone, JournalError."""
    role, speed = role_of(asked.stage), speed_of(asked.speed)
    if asked.debug and not asked.in_process:
        raise ConfigError("--pdb: a debugger follows a stage only with --in-process")
    if asked.slowest and role not in ALONE:
        raise ConfigError(f"--slowest: a {role} does not answer one record at a time; it is for {', '.join(ALONE)}")
    if asked.output is not None:
        check_output(asked.output)
    configure_quietly()
    with ExitStack() as stack:
        run = stack.enter_context(open_run(asked.run))
        scratch = Scratch(run)
        stack.callback(scratch.close)
        return _play(asked, run, role, speed, scratch)


def role_of(text: str) -> Role:
    """Raises ConfigError for what is no stage."""
    if text not in list(STAGES):
        raise ConfigError(f"--stage {text}: there are {', '.join(STAGES)}")
    return Role(text)


def speed_of(text: str) -> float:
    """Recorded seconds a second; 0 for as fast as it goes. Raises ConfigError."""
    number = text.removesuffix("x")
    try:
        speed = 0.0 if text == "max" else float(number)
    except ValueError:
        speed = -1.0
    if not 0.0 <= speed < math.inf or (speed == 0 and text != "max"):
        raise ConfigError(f"--speed {text}: expected max, 1x, or another multiple such as 0.5x or 10x")
    return speed


def configure_quietly() -> None:
    """A replayed stage's own log goes to stderr, errors alone: its answers say the rest. One thread computes, as in a run."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def _play(asked: Asked, run: Run, role: Role, speed: float, scratch: Scratch) -> int:
    bar = Bar(is_quiet=asked.debug)
    wanted = wanted_of(asked.only, asked.begin, asked.end)
    config = replay_config(run, (*asked.overrides, *(UNHURRIED if asked.debug else ())))
    config = with_model(with_code(config, role, asked.code), run, role)
    wanted, stretch = _stretch(wanted, run, role, scratch, bar)
    start = Position(*stretch.start.position) if stretch.start is not None else None
    part = Part(journal=str(run.journal), start=start, last=stretch.last)
    turns = recorded_turns(part, bar) if role is Role.ROLLOUT else Turns()
    debugger = Debugger() if asked.debug else None

    def make(welcome: Welcome, client: str) -> Stand | ProcessStand:
        if not asked.in_process:
            return ProcessStand(role, welcome, client, part)
        stage = make_stage(role, turns, debugger)
        return Stand(stage, welcome) if debugger is None else Stand(stage, welcome, debugger=debugger, patience_s=math.inf)

    recording = Recording(run.journal, start=stretch.start, progress=bar)
    player = Player(role, wanted, scratch, turns, config, make, stretch, speed, alone=asked.slowest > 0)
    try:
        tally = _tally(asked, player, recording)
        bar.clear()
    except bdb.BdbQuit:
        return 0
    except KeyboardInterrupt:
        if debugger is None:
            raise
        return 0
    except Exception as error:
        if debugger is not None and not isinstance(error, TidemillError):
            print(f"the stage raised {type(error).__name__}: {error}; this is where", file=sys.stderr)
            debugger.look_at(error.__traceback__)
        raise
    return _say(asked, run, role, scratch, player, tally, list(recording.told()), recording.dialect.changed)


def _stretch(wanted: Wanted, run: Run, role: Role, scratch: Scratch, bar: Bar) -> tuple[Wanted, Stretch]:
    """What is wanted, and where in the journal that is; a run that is wanted whole needs no index."""
    if wanted.is_everything:
        return wanted, Stretch()
    with Look(run, bar) as look:
        stretch = stretch_of(look, role, wanted, scratch.checkpoints())
        bar.clear()
    return (replace(wanted, tickets=stretch.tickets) if wanted.kind == "step" else wanted), stretch


def _tally(asked: Asked, player: Player, recording: Recording) -> Tally:
    tally = Tally()
    with Output(asked.output) as output:
        for pair in player.play(recording):
            output.write(tally.take(pair))
    return tally


def _say(asked: Asked, run: Run, role: Role, scratch: Scratch, player: Player, tally: Tally, told: Sequence[str],
         changed: Sequence[str]) -> int:  # fmt: skip
    for line in told:
        print(f"tidemill: {line}", file=sys.stderr)
    if changed:
        print(
            f"tidemill: recorded under another schema.lock: {', '.join(changed)} had other fields then; those that are new stand at their"
            " defaults, in what is given and in what is compared",
            file=sys.stderr,
        )
    for name, (then, now) in player.code_differs.items():
        say(f"user code {name} is not the recorded one: {then} then, {now} now")
    if not player.given:
        raise ConfigError(f"nothing of {asked.run} that a {role} was given is meant by that")
    for line in summary(tally, player.given, player.skipped) if asked.diff else [_played(player, tally)]:
        say(line)
    for seconds, what in player.slowest(asked.slowest):
        say(f"{seconds:10.4f} s  {what}")
    if not asked.diff or tally.first is None:
        return 0
    for line in context(tally.first, words_of(run)):
        say(line)
    if role is Role.ACTOR_TRAIN and tally.weights is not None:
        for line in apart(tally.weights, run.directory / "versions", scratch.path / "versions"):
            say(line)
    return DIFFERENT


def _played(player: Player, tally: Tally) -> str:
    came = f"{tally.pairs - tally.missing} of {tally.pairs} answers came"
    return f"{player.given} records and orders given, {came}; digest of the answers {tally.digest.hexdigest()}"
