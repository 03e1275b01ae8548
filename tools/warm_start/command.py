"""What `tidemill warm-start` does: train with a progress bar, then say how good the result is.

Parses no arguments: that is the command line's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tools.warm_start.training import SHIPPED_SEED, SHIPPED_STEPS, WarmStartReport, warm_start


def run(
    output: Path,
    seed: int = SHIPPED_SEED,
    steps: int = SHIPPED_STEPS,
    replace: bool = False,
    console: Console | None = None,
) -> WarmStartReport:
    """Makes a starting checkpoint in `output`. Raises CheckpointError where that exists and `replace` is not set."""
    torch.set_num_threads(1)  # a second thread makes products of this size slower
    console = console or Console()
    columns = (TextColumn("warm start"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("warm start", total=steps, loss=float("nan"))
        report = warm_start(output, seed, steps, lambda done, loss: bar.update(task, completed=done, loss=loss), replace)
    console.print(summary(report), soft_wrap=True, highlight=False)
    return report


def summary(report: WarmStartReport) -> str:
    """Two lines for people; accuracies on held-out problems at temperature 1."""
    found = report.quality
    return (
        f"{report.output}: {report.steps} steps in {report.seconds:.0f} s, loss {report.loss:.3f} nats a token\n"
        f"accuracy {found.accuracy:.3f}: uses the tool {found.tool_share:.0%} of the time and is then right in "
        f"{found.tool_accuracy:.1%}, else in {found.blurt_accuracy:.1%}"
    )
