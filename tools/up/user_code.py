"""Tries out what a pipeline names before anything is started: the environment, the verifier, the files of the model.

User code runs in short-lived processes of its own, found by the rules of the stages: nothing of it, and no torch, comes
into the calling process. Promises that those processes are gone afterwards, whatever the user's code does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from broker.lifeline import child_environment
from schemas.config import PipelineConfig
from schemas.errors import ConfigError
from stages.model.config import read_config
from stages.model.tensor_file import check_directory
from tools.up.trial import LOADED

PATIENCE_S = 60.0
"""For both together: some import a whole framework, on a busy machine or from a slow disk."""


@dataclass(frozen=True)
class Trial:
    """One process that loads user code, and the file into which it writes what is wrong."""

    key: str
    path: str
    process: subprocess.Popen[bytes]
    answer: IO[bytes]


def check_what_is_named(config: PipelineConfig, patience_s: float = PATIENCE_S) -> None:
    """Raises ConfigError or ModelError, a line for each thing that the stages would refuse or hang on."""
    read_config(config.model.path)
    check_directory(config.model.path)
    deadline = time.monotonic() + patience_s
    named = (("stages.env.environment", config.stages.env.environment), ("stages.reward.verifier", config.stages.reward.verifier))
    with tempfile.TemporaryFile() as resolved:
        resolved.write(config.model_dump_json().encode())
        with _trial(*named[0], resolved) as env, _trial(*named[1], resolved) as reward:
            complaints = [complaint for trial in (env, reward) if (complaint := _complaint(trial, deadline, patience_s))]
    if complaints:
        raise ConfigError("\n".join(complaints))


@contextmanager
def _trial(key: str, path: str, resolved: IO[bytes]) -> Iterator[Trial]:
    # -P and no more: the path of a stage. A file for the answer: a pipe would stay open in what user code leaves behind.
    command = (sys.executable, "-P", "-m", "tools.up.trial", key)
    with tempfile.TemporaryFile() as answer, open(f"/proc/self/fd/{resolved.fileno()}", "rb") as config:
        resolved.flush()
        process = subprocess.Popen(
            command, stdin=config, stdout=answer, stderr=subprocess.DEVNULL, env=child_environment(), start_new_session=True
        )
        try:
            yield Trial(key, path, process, answer)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _complaint(trial: Trial, deadline: float, patience_s: float) -> str:
    """What is wrong, in one line; empty where nothing is."""
    try:
        code = trial.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"{trial.key} = {trial.path!r}: still not loaded after {patience_s:g} s; do what takes long in reset"
    trial.answer.seek(0)
    said = " ".join(trial.answer.read().decode(errors="replace").split())
    if said == LOADED:
        return ""
    if not said:
        return f"{trial.key} = {trial.path!r}: the process that loads it ends with code {code}"
    return said if said.startswith("stages.") else f"{trial.key}: {said}"  # a complaint of an option names its key by itself
