"""`tidemill serve FILE`: checks the pipeline, makes its run directory or goes on with it, and serves it until it ends.

The stages are started by somebody else: one container each, one service of an init system each, by hand. Exit codes: 0 the run is over;
1 it failed, its broker crashed, or could not be started; 2 bad input; 143 a signal ended this command and not the run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from broker.__main__ import EXIT_LEFT
from schemas.config import PipelineConfig, load_config, plan, read_model_facts
from schemas.errors import ConfigError
from stages.host.core import EXIT_BAD_INPUT
from tools.keys.local import hand_down
from tools.serve.choosing import FAILED, choose
from tools.serve.keeper import BROKER, Keeper, NotStartedError
from tools.up.directory import FAILURE, SUMMARY, forget_the_end, held, new_run_directory, why_it_failed, with_name
from tools.up.ending import failure_text, readable, summary_page
from tools.up.endpoint import check_free, check_metrics_port
from tools.up.lines import Lines
from tools.up.losses import missing_segments
from tools.up.user_code import check_what_is_named
from tools.up.view import LineView
from tools.up.watch import EXIT_FAILED, how

WIDTH = 120
"""Columns of the summary: what reads this is a log."""


def serve(file: Path, overrides: Sequence[str], *, resume: bool = False) -> int:
    """The command's exit code. Raises ConfigError before anything is started."""
    console = Console(width=WIDTH, emoji=False, markup=False, highlight=False, soft_wrap=True)
    config = _checked_config(file, overrides, console)
    keys = hand_down(config.broker.endpoint, config.broker.keys)
    check_free(config.broker.endpoint)
    check_metrics_port(config.broker.metrics_address, config.broker.metrics_port)
    chosen = choose(config, resume=resume)
    if chosen.directory is not None and chosen.over:
        return _say_it_is_over(chosen.directory, chosen.over, console)
    directory = chosen.directory or _new(config)
    with held(directory):
        forget_the_end(directory)
        console.print(f"run {directory.name} in {directory}; stages come to {config.broker.endpoint}")
        if lost := missing_segments(directory / "journal", config.broker.journal_quota_bytes):
            console.print(lost)
        keeper = Keeper(directory, config.broker.endpoint, _view(console, config), keys, accept_loss=config.broker.accept_loss)
        try:
            code = keeper.run()
        except NotStartedError as error:
            print(f"tidemill: run {directory.name}: {error}; then give the same command again", file=sys.stderr)
            return EXIT_FAILED
        return _say_the_end(code, directory, keeper, console)


def _new(config: PipelineConfig) -> Path:
    """Checked once: a broker that comes back after a crash is not to keep its stages waiting."""
    check_what_is_named(config)
    return new_run_directory(with_name(config))


def _checked_config(file: Path, overrides: Sequence[str], console: Console) -> PipelineConfig:
    config = load_config(file, overrides)
    if not config.broker.endpoint:
        raise ConfigError("broker.endpoint is empty, and nobody would find this broker; give --endpoint, such as tcp://127.0.0.1:7700")
    # Without this machine's cores: the stages take those of whichever machine they run on.
    findings = plan(config, read_model_facts(config.model.path))
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError("\n".join(f"{finding.key}: {finding.what}; {finding.mend}" for finding in errors))
    for finding in findings:
        console.print(str(finding))
    return config


def _view(console: Console, config: PipelineConfig) -> LineView:
    return LineView(console, Lines(time.monotonic(), config.broker.stall_notice_s))


def _say_it_is_over(directory: Path, ended: str, console: Console) -> int:
    if ended == FAILED:
        console.print(
            f"{failure_text(why_it_failed(directory), directory)}\n"
            "to go on with it once the cause is mended: --resume; to begin another: --name NAME"
        )
        return EXIT_FAILED
    console.print(summary_page(json.loads((directory / SUMMARY).read_text(encoding="utf-8")), directory))
    console.print(f"run {directory.name} is over ({ended}); to begin another: --name NAME")
    return 0


def _say_the_end(code: int, directory: Path, keeper: Keeper, console: Console) -> int:
    """Says how it ended; the exit code of this command."""
    if code == 0:
        console.print(summary_page(json.loads((directory / SUMMARY).read_text(encoding="utf-8")), directory))
        return 0
    if code == EXIT_FAILED and (directory / FAILURE).is_file():
        return _say_it_is_over(directory, FAILED, console)
    if code == EXIT_LEFT:
        console.print(f"left run {directory.name} at step {keeper.step}; the same command goes on with it")
        return EXIT_LEFT
    console.print("\n".join([f"the {BROKER} ended {how(code)}; its last lines:", *(f"  {readable(line)}" for line in keeper.last_lines())]))
    return code if code == EXIT_BAD_INPUT else EXIT_FAILED
