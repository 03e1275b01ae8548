"""Sections that belong to the whole run: `[run]`, `[pipeline]`, `[model]`, `[host]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.config.section import AtLeastOne, Name, NotNegative, Seconds, Section, matching


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
