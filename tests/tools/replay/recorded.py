"""A run to replay: three small steps of the calculator, with a user's reward that has a bug in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[3]

BUGGY = '''
def reward(episode):
    """1 for the right number."""
    answer = episode.outcome.get("answer")
    if answer is None:
        return 0.0
    if answer.startswith("-"):
        raise ValueError(f"not a number: {answer!r}")
    return float(answer == episode.task["answer"])
'''
FIXED = '''
def reward(episode):
    """1 for the right number."""
    answer = episode.outcome.get("answer")
    return 0.0 if answer is None else float(answer == episode.task["answer"])
'''
WRONG_PARSE = FIXED.replace('answer == episode.task["answer"]', 'answer.lstrip("-0") == episode.task["answer"].lstrip("-0")[:1]')
SETTINGS = (
    *("schedule.steps=3", "schedule.groups_per_step=4", "schedule.members=4", "evaluation.problems=12"),
    *("stages.reward.verifier=my_reward:reward", 'stages.reward.path=["then"]', "run.directory=runs"),
)


def record(folder: Path) -> Path:
    """Records `runs/hunt` in `folder`, with the reward of `then/`; `fixed/` and `wrong/` hold others. Returns the run directory."""
    for name, text in (("then", BUGGY), ("fixed", FIXED), ("wrong", WRONG_PARSE)):
        (folder / name).mkdir()
        (folder / name / "my_reward.py").write_text(text)
    pipeline = str(HOUSE / "compose/pipelines/calculator.toml")
    done = tidemill(folder, "up", pipeline, "--name", "hunt", *(part for setting in SETTINGS for part in ("--set", setting)))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "hunt"


def tidemill(folder: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """The command line, in `folder`."""
    command = [sys.executable, "-P", "-m", "tools", *arguments]
    return subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True, timeout=300, check=False)
