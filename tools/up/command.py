"""`tidemill up FILE`: checks everything that can be checked, then runs the pipeline on this machine to its end.

Promises that whatever is wrong with what was asked for is said before any process is started.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from broker.keys import ClientKeys
from schemas.config import Finding, PipelineConfig, load_config, plan, read_model_facts
from schemas.errors import ConfigError
from stages.host.stage import restart_policy
from tools.keys.local import hand_down
from tools.up.directory import SUMMARY, forget_the_end, held, new_run_directory, run_directory_to_resume, why_it_failed, with_name
from tools.up.ending import RunFailure, failure_text, summary_page
from tools.up.endpoint import broker_endpoint, check_metrics_port, reachable
from tools.up.hosts import HostsFile, read_hosts
from tools.up.losses import missing_segments
from tools.up.supervisor import RUN_DIRECTORY, Commands, Supervisor, commands
from tools.up.user_code import check_what_is_named
from tools.up.view import view_for
from tools.up.watch import BROKER, Finish, Outcome, Watch
from tools.up.ways import make_keys, ways, with_hosts

EXIT_CODES = {Outcome.ENDED: 0, Outcome.FAILED: 1, Outcome.STOPPED: 130, Outcome.CUT_OFF: 130}
"""130 is what a shell shows for a command that Ctrl-C ended."""

PIPE_WIDTH = 120
"""Columns of the summary where no terminal says how wide it is."""


def up(file: Path, overrides: Sequence[str], *, resume: bool = False, hosts_file: Path | None = None) -> int:
    """The command's exit code. Raises ConfigError before anything is started."""
    console = Console(emoji=False, markup=False) if sys.stdout.isatty() else Console(width=PIPE_WIDTH, emoji=False, markup=False)
    hosts = read_hosts(hosts_file) if hosts_file is not None else None
    config = checked_config(file, overrides, hosts)
    for finding in findings_of(config, hosts):
        console.print(str(finding), markup=False, highlight=False)
    check_metrics_port(config.broker.metrics_address, config.broker.metrics_port)
    config = config if resume else with_name(config)
    if hosts is not None:
        make_keys(config, hosts)
    keys = hand_down(config.broker.endpoint, config.broker.keys)
    with broker_endpoint(config.broker.endpoint) as endpoint:
        check_what_is_named(config)
        directory = run_directory_to_resume(config) if resume else new_run_directory(config)
        with held(directory):
            forget_the_end(directory)
            console.print(f"run {config.run.name} in {directory}", markup=False, highlight=False)
            if lost := missing_segments(directory / "journal", config.broker.journal_quota_bytes):
                console.print(lost, markup=False, highlight=False, soft_wrap=True)
            found = ways(config, hosts, reachable(endpoint)) if hosts is not None else None
            what = commands(directory, endpoint, found, accept_loss=config.broker.accept_loss)
            return _supervise(config, directory, what, reachable(endpoint), console, keys)


def checked_config(file: Path, overrides: Sequence[str], hosts: HostsFile | None = None) -> PipelineConfig:
    """The configuration; raises ConfigError for what is wrong with it, predicted deadlocks included."""
    config = load_config(file, overrides)
    config = with_hosts(config, hosts) if hosts is not None else config
    errors = [finding for finding in findings_of(config, hosts) if finding.level == "error"]
    if errors:
        raise ConfigError("\n".join(f"{finding.key}: {finding.what}; {finding.mend}" for finding in errors))
    return config


def findings_of(config: PipelineConfig, hosts: HostsFile | None = None) -> list[Finding]:
    """What is predicted for this machine, or these hosts, and this model."""
    facts = read_model_facts(config.model.path)
    if hosts is None:
        return plan(config, facts, len(os.sched_getaffinity(0)))
    return [finding for finding in plan(config, facts) if finding.key != "host.slots"]  # how many slots there are, only the hosts know


def _supervise(
    config: PipelineConfig, directory: Path, what: Commands, endpoint: str, console: Console, keys: ClientKeys | None
) -> int:  # fmt: skip
    view = view_for(console, config.broker.stall_notice_s)
    watch = Watch(restart_policy(config.host), tuple(what.hosts), what.remote)
    supervisor = Supervisor(directory, endpoint, what, watch, view, keys)
    try:
        finish = supervisor.run()
    finally:
        view.close()
    _say_the_end(finish, config, directory, supervisor, console)
    return EXIT_CODES[finish.outcome]


def _say_the_end(finish: Finish, config: PipelineConfig, directory: Path, supervisor: Supervisor, console: Console) -> None:
    if (directory / SUMMARY).is_file():
        summary = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
        if summary["steps"] or finish.outcome is not Outcome.FAILED:  # zeros would only hide what failed
            console.print(summary_page(summary, directory))
    match finish.outcome:
        case Outcome.FAILED:
            text = failure_text(_failure(finish, directory, supervisor), directory)
            Console(stderr=True, emoji=False, markup=False).print(text, markup=False, highlight=False, soft_wrap=True)
        case Outcome.CUT_OFF:
            text = f"cut off before the ledger closed; to go on: the same command with --name {config.run.name} --resume"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        case Outcome.STOPPED:
            console.print(f"stopped; the run directory is whole: {directory}", markup=False, highlight=False, soft_wrap=True)


def _failure(finish: Finish, directory: Path, supervisor: Supervisor) -> RunFailure:
    if not finish.blamed:
        return why_it_failed(directory)
    name = finish.blamed
    if name == RUN_DIRECTORY:
        return RunFailure(stage=name, reason=finish.reason, advice="start the run again; to delete it, end it first: Ctrl-C")
    advice = f"read logs/{name}.log in the run directory; mend the cause and start the run again"
    if name == BROKER:
        advice += f", or go on with this one, which ends the same before that: the same command with --name {directory.name} --resume"
    return RunFailure(stage=name, reason=finish.reason, last_lines=supervisor.last_lines(name), advice=advice)
