"""The command line: `tidemill COMMAND`.

Thin; each command imports what it needs when it runs, so that help is quick.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from schemas.edges import Role
from schemas.errors import ConfigError, InvariantError, TidemillError

EXIT_BAD_INPUT = 2

app = typer.Typer(
    name="tidemill",
    help="Reinforcement learning of LLM agents as separate processes around one journaled broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline in TOML, such as compose/pipelines/calculator.toml.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key: --set schedule.kind=sync")]


@app.command()
def up(
    file: File,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and of its folder; none: pipeline and time.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut off (needs --name).")] = False,
    hosts: Annotated[Path | None, typer.Option(metavar="FILE", help="Run it on the hosts of this TOML file, over ssh.")] = None,
) -> None:
    """Run a pipeline on this machine, or on several: every stage its own process, until its steps are done."""
    from tools.up.command import up as run_up

    if name is not None and not name.strip():
        raise ConfigError("--name: the name is empty; name the run, or leave --name out")
    raise typer.Exit(run_up(file, [*(overrides or ()), *_named(name or "")], resume=resume, hosts_file=hosts))


@app.command()
def serve(
    file: File,
    overrides: Overrides = None,
    endpoint: Annotated[str, typer.Option(help="Where stages find it: tcp://*:7700 needs keys; none: broker.endpoint.")] = "",
    name: Annotated[str, typer.Option(help="Name of the run; none: the pipeline's newest run if it has not ended, else a new one.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that failed or was stopped, too.")] = False,
) -> None:
    """Run the broker of a pipeline alone, until its steps are done; its stages are started by somebody else."""
    from tools.serve.command import serve as run_serve

    at = [f'broker.endpoint="{endpoint}"'] if endpoint else []
    raise typer.Exit(run_serve(file, [*(overrides or ()), *at, *_named(name)], resume=resume))


@app.command()
def check(
    file: File,
    overrides: Overrides = None,
    whole: Annotated[bool, typer.Option("--all", help="Every key that each process goes by, defaults too, as TOML.")] = False,
) -> None:
    """Show what would run, and every predicted deadlock or bound; exit code 2 where it cannot run."""
    from broker.keys import directory_for
    from schemas.config import brief, describe, load_config, plan, read_model_facts
    from tools.up.user_code import check_what_is_named

    config = load_config(file, overrides or ())
    directory_for(config.broker.endpoint, config.broker.keys)
    findings = plan(config, read_model_facts(config.model.path), len(os.sched_getaffinity(0)))
    typer.echo(describe(config) if whole else brief(config), nl=False)
    typer.echo("".join(f"\n{finding}" for finding in findings), nl=bool(findings))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(EXIT_BAD_INPUT)
    check_what_is_named(config)
    if not findings:
        typer.echo("\nnothing to object to")


@app.command("warm-start")
def warm_start(
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the checkpoint.")],
    seed: Annotated[int | None, typer.Option(help="Number that decides all; default: that of the shipped one.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps; default: those of the shipped one.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Write over a checkpoint that is there.")] = False,
) -> None:
    """Make the quickstart's starting checkpoint by supervised steps on demonstrations."""
    from tools.warm_start.command import run
    from tools.warm_start.training import SHIPPED_SEED, SHIPPED_STEPS

    run(output, SHIPPED_SEED if seed is None else seed, SHIPPED_STEPS if steps is None else steps, replace)


bench = typer.Typer(help="Measure this installation, beside others where there are others.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command("broker")
def bench_broker(
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures into this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter rounds: a few minutes.")] = False,
    only: Annotated[str, typer.Option(metavar="ROWS", help="Only these rows, such as 20kb,latency,episode.")] = "",
    against: Annotated[str, typer.Option(metavar="SYSTEMS", help="Only against these, such as redis_always,no_journal.")] = "",
) -> None:
    """Compare the broker with Redis Streams, RabbitMQ and NATS JetStream, all durable, and take its own measure."""
    from tools.bench.command import bench_broker as run

    run(json_file, quick=quick, only=only, against=against)


@bench.command("weights")
def bench_weights(
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures into this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and shorter runs: two minutes.")] = False,
) -> None:
    """Measure how fast weights cross to another machine, what encryption costs, and what deltas of real versions save."""
    from tools.bench.weights import bench_weights as run

    run(json_file, quick=quick)


Run = Annotated[str, typer.Argument(metavar="RUN|ENDPOINT", help="A run directory, a run's name, or where its broker listens.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def top(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Show it a single time.")] = False,
    as_json: Json = False,
) -> None:
    """Show queues and clients of a run, live."""
    from tools.observe.command import run_top

    raise typer.Exit(run_top(run, once=once, as_json=as_json))


@app.command()
def doctor(run: Run, as_json: Json = False) -> None:
    """Say why a run does not move: the root cause in the first line, then who waits for whom; exit code 1 where something is wrong."""
    from tools.observe.command import run_doctor

    raise typer.Exit(run_doctor(run, as_json=as_json))


@app.command()
def stop(run: Run) -> None:
    """End a run before its steps are done: its ledger closes, its stages go home."""
    from tools.serve.stopping import stop as run_stop

    raise typer.Exit(run_stop(run))


dead = typer.Typer(help="Look at records that were given up, and try them again.", no_args_is_help=True)
app.add_typer(dead, name="dead")
Letter = Annotated[int, typer.Argument(metavar="ID", help="Number of the dead letter, from `dead list`.")]


@dead.command("list")
def dead_list(run: Run, as_json: Json = False) -> None:
    """List the dead letters of a run, oldest first."""
    from tools.observe.command import run_dead_list

    raise typer.Exit(run_dead_list(run, as_json=as_json))


@dead.command("show")
def dead_show(letter: Letter, run: Run) -> None:
    """Show one dead letter: what it is, what happened to it, and its record."""
    from tools.observe.command import run_dead_show

    raise typer.Exit(run_dead_show(letter, run))


@dead.command("retry")
def dead_retry(letter: Letter, run: Run) -> None:
    """Have the task of a dead letter tried again, or say why that cannot be; exit code 1 then."""
    from tools.observe.command import run_dead_retry

    raise typer.Exit(run_dead_retry(letter, run))


keys = typer.Typer(help="Make and revoke the keys by which processes on other machines come in.", no_args_is_help=True)
app.add_typer(keys, name="keys")
KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key: a machine's name, for example.")]
Roles = Annotated[list[Role] | None, typer.Option("--role", metavar="ROLE", help="What it may be; several allowed; none: every role.")]
Directory = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where keys are kept; default: TIDEMILL_KEYS or ~/.config/tidemill/keys.")
]


@keys.command("new")
def keys_new(name: KeyName, roles: Roles = None, directory: Directory = None) -> None:
    """Make a key and allow it; the broker's own key too, the first time."""
    from tools.keys.command import new

    new(name, roles or (), directory)


@keys.command("list")
def keys_list(directory: Directory = None) -> None:
    """List the keys that are allowed, and their roles."""
    from tools.keys.command import show

    show(directory)


@keys.command("revoke")
def keys_revoke(name: KeyName, directory: Directory = None) -> None:
    """Take a key off the list; brokers at work notice within seconds."""
    from tools.keys.command import revoke

    revoke(name, directory)


Recorded = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run's name, or a file made by `tidemill cut`.")]


@app.command()
def inspect(
    run: Recorded,
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="Only records of this queue.")] = "",
    stage: Annotated[str, typer.Option(metavar="STAGE", help="Only records that this stage takes or puts.")] = "",
    group: Annotated[int | None, typer.Option(min=0, help="Only records of this group.")] = None,
    session: Annotated[str, typer.Option(metavar="TICKET[.ATTEMPT]", help="Only records of this session.")] = "",
    step: Annotated[int | None, typer.Option(min=0, help="Only records that this step trained, and the version it made.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="Only records with tokens of this version.")] = None,
    reward: Annotated[str, typer.Option(metavar="COMPARISON", help="Only records with such a reward: '<0.5', '>=1', '0'.")] = "",
    failed: Annotated[bool, typer.Option("--failed", help="List what failed, and why.")] = False,
    begin: Annotated[float | None, typer.Option("--from", metavar="SECONDS", help="From this second of the run on.")] = None,
    end: Annotated[float | None, typer.Option("--to", metavar="SECONDS", help="Up to this second of the run.")] = None,
    record: Annotated[str, typer.Option(metavar="ENTRY[.PART]", help="One record in full, by its number in a list.")] = "",
    episode: Annotated[str, typer.Option(metavar="TICKET[.ATTEMPT]", help="A session as a conversation, token by token.")] = "",
    slowest: Annotated[int, typer.Option(min=0, metavar="N", help="The N records that took longest to make, the longest first.")] = 0,
    as_json: Json = False,
) -> None:
    """Look into what a run recorded: its queues; with a filter, their records; or one record, or one episode."""
    from tools.records.command import run_inspect
    from tools.records.selection import Selection, check_times, reward_of, session_of

    check_times(begin, end)
    wanted = Selection(
        queue=queue or None, stage=stage or None, group=group, session=session_of(session) if session else None, step=step,
        version=version, reward=reward_of(reward) if reward else None, failed=failed, begin=begin, end=end,
    )  # fmt: skip
    raise typer.Exit(run_inspect(run, wanted, record=record, episode=episode, slowest=slowest, as_json=as_json))


@app.command()
def story(
    subject: Annotated[str, typer.Argument(metavar="ID", help="ticket:7, session:7.1, group:3, step:4 or version:2.")],
    run: Recorded,
    trace: Annotated[str, typer.Option(metavar="FILE", help="Write a Chrome trace (for ui.perfetto.dev) into this file.")] = "",
    as_json: Json = False,
) -> None:
    """Tell the life of a ticket, session, group, step or version: who had it, for how long, what became of it."""
    from tools.records.command import run_story

    raise typer.Exit(run_story(subject, run, trace=trace, as_json=as_json))


@app.command()
def cut(
    run: Recorded,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make, such as out.tide.")],
    around: Annotated[str, typer.Option(metavar="ID", help="ticket:7, session:7.1, group:3, step:4 or version:2.")],
    redact: Annotated[bool, typer.Option("--redact", help="Blank tokens, tasks, outcomes and reasons; lengths stay.")] = False,
) -> None:
    """Cut out of a recorded run what bears on one id: a small file that inspect and story open like a run."""
    from tools.records.command import run_cut

    raise typer.Exit(run_cut(run, around, str(file), redact=redact))


@app.command()
def replay(
    run: Recorded,
    stage: Annotated[str, typer.Option(metavar="STAGE", help="env, rollout, reward, reference, actor-train or weight-sync.")],
    only: Annotated[str, typer.Option(metavar="ID", help="Only 7 (a ticket), 7.1 (a session), group:3, step:2 or version:4.")] = "",
    begin: Annotated[float | None, typer.Option("--from", metavar="SECONDS", help="From this second of the run on.")] = None,
    end: Annotated[float | None, typer.Option("--to", metavar="SECONDS", help="Up to this second of the run.")] = None,
    speed: Annotated[str, typer.Option(metavar="max|1x|Nx", help="Recorded intervals: left out, kept, or N times as fast.")] = "max",
    diff: Annotated[bool, typer.Option("--diff", help="Compare the answers with the recorded ones; exit code 1: one differs.")] = False,
    in_process: Annotated[bool, typer.Option("--in-process", help="Run the stage, user code included, in this very process.")] = False,
    debug: Annotated[bool, typer.Option("--pdb", help="Stop in the stage's handler of each record, and where user code raises.")] = False,
    code: Annotated[Path | None, typer.Option(metavar="PATH", help="Folder or file with a reward or environment to try instead.")] = None,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answers, times left out, as lines of JSON.")] = None,
    slowest: Annotated[int, typer.Option(min=0, metavar="N", help="Give records one by one, and name the N that took longest now.")] = 0,
) -> None:
    """Feed a stage with what it was given in a recorded run, in that order, and see what it answers now."""
    from tools.replay.command import Asked, run_replay

    asked = Asked(
        run=run, stage=stage, only=only, begin=begin, end=end, speed=speed, overrides=tuple(overrides or ()), code=code, diff=diff,
        in_process=in_process, debug=debug, output=output, slowest=slowest,
    )  # fmt: skip
    raise typer.Exit(run_replay(asked))


@app.command()
def whatif(
    run: Recorded,
    policies: Annotated[list[str] | None, typer.Option("--policy", metavar="NAME", help="Such as placement=least_in_flight.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Such as schedule.max_lag=1.")] = None,
    begin: Annotated[float | None, typer.Option("--from", metavar="SECONDS", help="From this second of the run on.")] = None,
    end: Annotated[float | None, typer.Option("--to", metavar="SECONDS", help="Up to this second of the run.")] = None,
    as_json: Json = False,
) -> None:
    """Ask another policy, or other constants, at every decision of a recorded run; print those that differ."""
    from tools.records.selection import check_times
    from tools.replay.whatif import Asked, run_whatif

    check_times(begin, end)
    asked = Asked(run=run, policies=policies or (), overrides=overrides or (), begin=begin, end=end, as_json=as_json)
    raise typer.Exit(run_whatif(asked))


def _named(name: str) -> list[str]:
    # As a JSON string, so that a name like 7 stays text.
    return [f'run.name="{name}"'] if name else []


PROCESSES = {
    "broker": ("broker", "Run the broker: --run-directory DIR --config FILE [--endpoint ENDPOINT]."),
    "env": ("stages.env", "Run a process that plays tickets."),
    "rollout": ("stages.rollout", "Run a rollout replica."),
    "reward": ("stages.reward", "Run a process that scores episodes."),
    "reference": ("stages.reference", "Run a process that computes the frozen model's log-probs."),
    "actor-train": ("stages.actor_train", "Run the trainer."),
    "weight-sync": ("stages.weight_sync", "Run the process that distributes versions."),
    "host": (
        "stages.host",
        "Run the host agent of a machine: --broker ENDPOINT [--slots cpu:0-1|gpu:0-7|auto] [--name NAME] [--directory DIR] "
        "[--roles ROLE,ROLE] [--key FILE --server-key FILE|KEY].",
    ),
}
"""Commands that become one process: the module, and what it is."""


def _add_process(command: str, module: str, what: str) -> None:
    def become(context: typer.Context) -> None:
        # The module reads the arguments, --help included: what it takes stands in one place.
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *context.args])

    arguments = {"allow_extra_args": True, "ignore_unknown_options": True}
    usage = what if command in ("broker", "host") else f"{what[:-1]}: --broker ENDPOINT --name NAME [--key FILE --server-key FILE|KEY]."
    app.command(command, help=usage, context_settings=arguments, add_help_option=False)(become)


for _command, (_module, _what) in PROCESSES.items():
    _add_process(_command, _module, _what)


def complain(error: TidemillError) -> int:
    """Says what is wrong, a line for each thing; the exit code that goes with it."""
    for line in str(error).splitlines():
        print(f"tidemill: {line}", file=sys.stderr)
    return 1 if isinstance(error, InvariantError) else EXIT_BAD_INPUT


def main() -> None:
    """The console command."""
    try:
        app()
    except TidemillError as error:
        sys.exit(complain(error))
    except KeyboardInterrupt:
        sys.exit(130)
