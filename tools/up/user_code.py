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
from schemas.config.complaints import leaf_keys
from schemas.errors import ConfigError, ModelError
from stages.host.children import why_not_started
from stages.model.config import read_config
from stages.model.tensor_file import check_directory
from tools.up.trial import ENVIRONMENT, LOADED, VERIFIER

PATIENCE_S = 60.0
"""For both together: some import a whole framework, on a busy machine or from a slow disk."""
LONG = {
    ENVIRONMENT: ": until then it is to be imported and made, and to draw a train and an eval task; do what takes long in reset",
    VERIFIER: ": until then it is to be imported; load what is large while an episode is judged, or in fewer imports",
}
"""What a trial is to come through in that time."""


@dataclass(frozen=True)
class Trial:
    """One process that loads user code, and the file into which it writes what is wrong."""

    key: str
    path: str
    process: subprocess.Popen[bytes]
    answer: IO[bytes]


def check_what_is_named(config: PipelineConfig, patience_s: float = PATIENCE_S) -> None:
    """Raises ConfigError, a line for each thing that the stages would refuse or hang on."""
    try:
        read_config(config.model.path)
        check_directory(config.model.path)
    except ModelError as error:
        raise ConfigError(f"model.path: {error}") from error
    deadline = time.monotonic() + patience_s
    named = ((ENVIRONMENT, config.stages.env.environment), (VERIFIER, config.stages.reward.verifier))
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
        try:
            process = subprocess.Popen(
                command, stdin=config, stdout=answer, stderr=subprocess.DEVNULL, env=child_environment(), start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"{key} = {path!r}: the process that tries it cannot be started: {why_not_started(error)}") from error
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
        return f"{trial.key} = {trial.path!r}: still not loaded after {patience_s:g} s{LONG[trial.key]}"
    trial.answer.seek(0)
    said = " ".join(trial.answer.read().decode(errors="replace").split())
    if said == LOADED:
        return ""
    if not said:
        return f"{trial.key} = {trial.path!r}: the process that loads it ends with code {code}"
    return said if _names_a_key(said) else f"{trial.key}: {said}"


def _names_a_key(said: str) -> bool:
    """Whether a complaint says by itself which key it is about: an option, a weight, the model."""
    first = said.partition(" ")[0].removesuffix(":")
    return any(first == key or first.startswith(f"{key}.") for key in leaf_keys())
