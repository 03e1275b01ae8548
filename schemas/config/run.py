"""Sections that belong to the whole run: `[run]`, `[pipeline]`, `[model]`, `[host]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from schemas.config.section import AtLeastOne, Name, NotNegative, Seconds, Section, matching

StageRole = Literal["env", "rollout", "reward", "reference", "actor-train", "weight-sync"]


def _with_the_trainer(roles: tuple[StageRole, ...]) -> tuple[StageRole, ...]:
    if "actor-train" not in roles:
        raise PydanticCustomError("head_roles", 'expected a list with "actor-train": it writes checkpoints into the run directory')
    return roles


# TOML and the welcome's JSON know lists only; inside, a frozen tree holds tuples.
HeadRoles = Annotated[tuple[StageRole, ...], Field(strict=False), AfterValidator(_with_the_trainer)]


class RunConfig(Section):
    """`[run]`: one execution of the pipeline, and where it leaves its traces."""

    name: Annotated[str, matching(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}|", "at most 64 letters, digits, `_`, `-` or `.`")] = ""
    """Name of the run and of its folder; empty: the pipeline's name and the time of the start."""
    directory: Annotated[str, Field(min_length=1)] = "runs"
    """Folder that holds one folder a run; a relative path starts where the command is given."""
    seed: NotNegative = 0
    """Number from which every choice by chance is derived: tasks, sampling, order of samples."""
    drain_s: Seconds = 30.0
    """Seconds that work in flight may take to end after the last step; on a signal it is at most 3."""


class PipelineNameConfig(Section):
    """`[pipeline]`: which loop this is; one broker may carry several."""

    name: Name
    """Name of the pipeline, in the header of every record: letters, digits, `_`, `-` and `.`, at most 64."""


class ModelConfig(Section):
    """`[model]`: what training starts from, and what the reference stays at."""

    path: Annotated[str, Field(min_length=1)]
    """Hugging Face folder (Qwen3) with config.json, safetensors and a tokenizer; a relative path is looked for where
    the command is given, then beside the TOML file, then in Tidemill's own folder."""


class HostConfig(Section):
    """`[host]`: the agent that starts, pins and restarts the processes of one machine."""

    slots: Literal["auto"] | AtLeastOne = "auto"
    """Slots that the machine offers to rollout, reference and actor-train; "auto": one for each processor core."""
    restart_limit: NotNegative = 5
    """Restarts of one process within `restart_window_s` after which the run is given up."""
    restart_window_s: Seconds = 600.0
    """Seconds over which restarts are counted."""
    backoff_s: Seconds = 0.2
    """Seconds before the first restart of a process; doubled at each further one."""
    backoff_max_s: Seconds = 10.0
    """Seconds before a restart at most."""
    wait_for: AtLeastOne = 1
    """Hosts that have to be there before the run's processes are spread over them; later ones get what still waits for a host."""
    head_roles: HeadRoles = ("actor-train", "weight-sync")
    """Roles that run only where the broker's run directory is, because they write into it or are to stay near it; "actor-train"
    always does."""
    return_s: Seconds = 60.0
    """Seconds for which a role that has lost its last host, and may run on no other, waits for that host before the run fails."""
    cache_bytes: AtLeastOne = 64 * 2**30
    """Bytes that a machine keeps of weights and models that came over the network (in `$TIDEMILL_CACHE`, else `~/.cache/tidemill`);
    what was not used for longest goes first, what is in use stays."""
