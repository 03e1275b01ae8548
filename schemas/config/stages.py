"""Sections of the stages, `[stages.<name>]`: how many processes, how large, and whose code they run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.config.section import AtLeastOne, Device, Folders, ImportPath, NotNegative, Options, Seconds, Section, not_built

Dtype = Literal["float32", "bfloat16"]


class EnvConfig(Section):
    """`[stages.env]`: plays tickets; many sessions a process."""

    replicas: AtLeastOne = 1
    """Env processes."""
    environment: ImportPath
    """`module:Class` of the environment, for example "stages.env.calculator:Calculator"."""
    options: Options = Field(default_factory=dict)
    """Keyword arguments of the environment and of its task source, which refuse what they do not know."""
    path: Folders = ()
    """Folders with your code, appended to Python's path; relative ones are looked for like `model.path`."""
    sessions: AtLeastOne = 128
    """Sessions that one process plays at a time."""
    max_turns: AtLeastOne = 16
    """Turns after which an episode is truncated."""
    max_episode_tokens: AtLeastOne = 192
    """Tokens of an episode, prompt and observations included, after which it is truncated."""
    turn_deadline_s: Seconds = 60.0
    """Seconds that one reset or step of the environment may take."""
    episode_deadline_s: Seconds = 300.0
    """Seconds that a whole session may take."""


class RolloutConfig(Section):
    """`[stages.rollout]`: answers turns with the current policy; one engine a replica."""

    replicas: AtLeastOne = 1
    """Rollout processes; each takes one slot, and waits where none is free."""
    replicas_max: NotNegative = 0
    """Rollout processes at most, where hosts offer more slots than are needed: each free slot gets one more; 0: only `replicas`."""
    engine: Annotated[Literal["torch"], not_built("sglang", instead="use 'torch'")] = "torch"
    """`torch`: the embedded engine with continuous batching."""
    max_running: AtLeastOne = 128
    """Turns that decode in one batch at most."""
    kv_tokens: AtLeastOne = 65_536
    """Tokens of KV that one replica may hold, running and paused sessions together."""
    prefill_tokens: AtLeastOne = 4_096
    """Tokens prefilled between two decode steps at most."""
    dtype: Dtype = "float32"
    """Number format of weights and KV."""
    device: Device = "cpu"
    """Torch device, "cpu", "cuda" or "cuda:0"."""


class RewardConfig(Section):
    """`[stages.reward]`: scores episodes with plain or async functions."""

    replicas: AtLeastOne = 1
    """Reward processes."""
    verifier: ImportPath
    """`module:function` from a finished episode to a number or to named parts, for example
    "stages.reward.exact_match:exact_match"."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of the named parts in their sum, the reward; a part that is not named here weighs 1."""
    path: Folders = ()
    """Folders with your code, appended to Python's path; relative ones are looked for like `model.path`."""
    timeout_s: Seconds = 10.0
    """Seconds that the verifier may take for one episode; after that its record has failed, not the process."""
    workers: AtLeastOne = 1
    """Worker processes in which one reward process runs the verifier."""


class ReferenceConfig(Section):
    """`[stages.reference]`: log-probs under the frozen starting model; not started where `kl_coefficient` is 0."""

    replicas: AtLeastOne = 1
    """Reference processes."""
    batch_tokens: AtLeastOne = 16_384
    """Tokens of one forward pass at most, padding included."""
    dtype: Dtype = "float32"
    """Number format of the weights."""
    device: Device = "cpu"
    """Torch device, "cpu", "cuda" or "cuda:0"."""


class ActorTrainConfig(Section):
    """`[stages.actor_train]`: the trainer; one rank for now."""

    backend: Annotated[Literal["torch"], not_built("deepspeed", instead="use 'torch'")] = "torch"
    """`torch`: one process with AdamW."""
    micro_batch_tokens: AtLeastOne = 8_192
    """Tokens of one forward and backward pass at most, padding included; gradients of a step add up."""
    dtype: Dtype = "float32"
    """Number format of the weights, their gradients and the optimizer's state."""
    device: Device = "cpu"
    """Torch device, "cpu", "cuda" or "cuda:0"."""
    checkpoint_every: AtLeastOne = 1
    """Steps from one checkpoint to the next."""
    keep_checkpoints: AtLeastOne = 3
    """Checkpoints kept on disk; older ones are deleted."""


class WeightSyncConfig(Section):
    """`[stages.weight_sync]`: keeps versions and brings them to the replicas."""

    keep_versions: AtLeastOne = 4
    """Versions kept on disk; older ones are deleted."""
    transfer: Literal["full", "delta"] = "delta"
    """How versions cross to other machines: `delta` sends the bytes that changed since a version which that machine holds, and the
    whole where that is not less; `full` always the whole. On one machine nothing is sent."""
    delta_chain_max: AtLeastOne = 4
    """Versions that a machine may be behind and still be brought forward by deltas; further behind it gets the whole."""


class StagesConfig(Section):
    """`[stages]`: one table for each stage."""

    env: EnvConfig
    """The stage that plays tickets."""
    rollout: RolloutConfig = RolloutConfig()
    """The stage that samples turns."""
    reward: RewardConfig
    """The stage that scores episodes."""
    reference: ReferenceConfig = ReferenceConfig()
    """The stage that computes log-probs of the frozen model."""
    actor_train: ActorTrainConfig = ActorTrainConfig()
    """The stage that trains."""
    weight_sync: WeightSyncConfig = WeightSyncConfig()
    """The stage that distributes versions."""
