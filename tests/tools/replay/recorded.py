"""A run to replay: three small steps of the calculator, with a user's reward that has a bug in it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.prey import Prey, strike

HOUSE = Path(__file__).resolve().parents[3]

BUGGY = '''
import time


def reward(episode):
    """1 for the right number."""
    answer = episode.outcome.get("answer")
    if answer is None:
        return 0.0
    if answer.startswith("-"):
        raise ValueError(f"not a number: {answer!r}")
    if len(answer) > 2:
        time.sleep(0.2)
        answer = answer[:2]
    return float(answer == episode.task["answer"])
'''
"""An exception, a slow path and a wrong parse."""
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


Kill = tuple[int, str]
"""Once this version is published, kill -9 this process."""


def record(folder: Path, *more: str, kills: Sequence[Kill] = (), reward: str = BUGGY) -> Path:
    """Records `runs/hunt` in `folder`, with the reward of `then/`; `fixed/` and `wrong/` hold others. Returns the run directory."""
    for name, text in (("then", reward), ("fixed", FIXED), ("wrong", WRONG_PARSE)):
        (folder / name).mkdir()
        (folder / name / "my_reward.py").write_text(text)
    settings = [part for setting in (*SETTINGS, *more) for part in ("--set", setting)]
    command = [sys.executable, "-P", "-m", "tools", "up", str(HOUSE / "compose/pipelines/calculator.toml"), "--name", "hunt", *settings]
    with (folder / "up.log").open("w") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as up:
        _kill(up, folder / "runs" / "hunt", list(kills))
        assert up.wait(300) == 0, (folder / "up.log").read_text()
    return folder / "runs" / "hunt"


def _kill(up: subprocess.Popen[bytes], run: Path, kills: list[Kill]) -> None:
    prey = Prey(up.pid)
    while kills and up.poll() is None:
        version, name = kills[0]
        if any(run.glob(f"versions/*-{version}")):
            process = prey.by_name().get(name)
            if process is not None and strike(process, signal.SIGKILL):
                kills.pop(0)
        time.sleep(0.02)
    assert not kills, f"the run ended before these were killed: {kills}"


def tidemill(folder: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """The command line, in `folder`."""
    command = [sys.executable, "-P", "-m", "tools", *arguments]
    return subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True, timeout=300, check=False)
