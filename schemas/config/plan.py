"""Checks across keys, before anything is started: predicted deadlocks and bounds, each with the way to mend it.

Pure: the machine and the model are arguments. An error is a run that could not go on; a warning one that would go
otherwise than the keys suggest. Findings come in the order of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from schemas.config.facts import ModelFacts
from schemas.config.pipeline import PipelineConfig

# What the broker charges a token: id 4, loss mask 1, two log-probs 8, and as much again while two copies are in flight.
BYTES_PER_TOKEN = 26
# Group statistics over one member say nothing: its advantage is always zero.
MEMBERS_MIN = 2


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One predicted trouble. `key` names what to look at, `mend` what to change."""

    level: Literal["error", "warning"]
    key: str
    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.level}: {self.key}: {self.what}; {self.mend}"


def plan(config: PipelineConfig, model: ModelFacts | None = None, cores: int | None = None) -> list[Finding]:
    """All findings. Without `model`, or without the machine's `cores`, what depends on them is not checked."""
    return [
        *_groups(config),
        *_lengths(config, model),
        *_batches(config),
        *_room(config),
        *_clocks(config),
        *_leases(config),
        *_versions(config),
        *_slots(config, cores),
        *_hosts(config),
    ]


def ticket_room_bytes(config: PipelineConfig) -> int:
    """Bytes of the one budget that a ticket is charged at admission, corrected at its ending."""
    return config.stages.env.max_episode_tokens * BYTES_PER_TOKEN


def slots_needed(config: PipelineConfig) -> int:
    """Slots the loop cannot turn without: one a rollout replica, one for actor-train and reference by grant."""
    return config.stages.rollout.replicas + 1


def _error(key: str, what: str, mend: str) -> Finding:
    return Finding(level="error", key=key, what=what, mend=mend)


def _warning(key: str, what: str, mend: str) -> Finding:
    return Finding(level="warning", key=key, what=what, mend=mend)


def _groups(config: PipelineConfig) -> Iterator[Finding]:
    schedule, env = config.schedule, config.stages.env
    if schedule.members < MEMBERS_MIN:
        yield _error(
            "schedule.members",
            "the advantage of a group of one is always zero, nothing would be learnt",
            "set at least 2",
        )
    if schedule.min_members > schedule.members:
        yield _error(
            "schedule.min_members",
            f"{schedule.min_members} members cannot come through where a group has {schedule.members}",
            f"set at most {schedule.members}",
        )
    if env.sessions * env.replicas < schedule.members:
        yield _warning(
            "stages.env.sessions",
            f"{env.sessions * env.replicas} sessions in all play a group of {schedule.members} in several turns",
            f"set at least {schedule.members}",
        )
    if config.algorithm.warmup_steps >= schedule.steps:
        yield _warning(
            "algorithm.warmup_steps",
            f"the run ends after {schedule.steps} steps, before the learning rate is reached",
            f"set less than {schedule.steps}",
        )


def _lengths(config: PipelineConfig, model: ModelFacts | None) -> Iterator[Finding]:
    env, turn = config.stages.env, config.sampling.max_turn_tokens
    if turn > env.max_episode_tokens:
        yield _error(
            "sampling.max_turn_tokens",
            f"a turn of {turn} tokens does not fit into an episode of {env.max_episode_tokens}",
            f"set at most {env.max_episode_tokens}",
        )
    longest = model.max_position_embeddings if model else None
    if longest is not None and env.max_episode_tokens > longest:
        yield _error(
            "stages.env.max_episode_tokens",
            f"the model knows {longest} positions, episodes may have {env.max_episode_tokens} tokens",
            f"set at most {longest}",
        )


def _batches(config: PipelineConfig) -> Iterator[Finding]:
    stages, episode = config.stages, config.stages.env.max_episode_tokens
    holds = {
        "stages.rollout.kv_tokens": stages.rollout.kv_tokens,
        "stages.reference.batch_tokens": stages.reference.batch_tokens,
        "stages.actor_train.micro_batch_tokens": stages.actor_train.micro_batch_tokens,
    }
    for key, tokens in holds.items():
        if tokens < episode:
            yield _error(key, f"the longest episode has {episode} tokens and would never fit", f"set at least {episode}")
    sessions, kept = stages.env.sessions * stages.env.replicas, stages.rollout.kv_tokens * stages.rollout.replicas
    if episode <= stages.rollout.kv_tokens and sessions * episode > kept:
        yield _warning(
            "stages.rollout.kv_tokens",
            f"{sessions} sessions of {episode} tokens may outgrow the KV of all replicas, {kept} tokens",
            f"set at least {-(-sessions * episode // stages.rollout.replicas)}, or fewer stages.env.sessions",
        )


def _room(config: PipelineConfig) -> Iterator[Finding]:
    schedule, broker, ticket = config.schedule, config.broker, ticket_room_bytes(config)
    group, step = ticket * schedule.members, ticket * schedule.members * schedule.groups_per_step
    if broker.budget_bytes < group:
        yield _error(
            "broker.budget_bytes",
            f"one group of {schedule.members} tickets needs {group} bytes, so none would ever be complete",
            f"set at least {step * (schedule.lag_bound + 1)}",
        )
    elif schedule.kind == "sync" and broker.budget_bytes < step:
        yield _error("broker.budget_bytes", f"a round needs {step} bytes, so none would ever be complete", f"set at least {step}")
    elif broker.budget_bytes < step * (schedule.lag_bound + 1):
        yield _warning(
            "broker.budget_bytes",
            "room, not max_lag, will bound how far sampling runs ahead",
            f"set at least {step * (schedule.lag_bound + 1)}",
        )
    if broker.max_frame_bytes < 4 * config.stages.env.max_episode_tokens:
        yield _error(
            "broker.max_frame_bytes",
            "the tokens of the longest episode do not fit into one frame",
            f"set at least {4 * config.stages.env.max_episode_tokens}",
        )
    if broker.segment_bytes < broker.max_frame_bytes:
        yield _warning(
            "broker.segment_bytes",
            "one frame may be larger than a journal segment",
            f"set at least {broker.max_frame_bytes}",
        )


def _clocks(config: PipelineConfig) -> Iterator[Finding]:
    broker, env, host = config.broker, config.stages.env, config.host
    if not broker.heartbeat_s < broker.suspect_s < broker.dead_s:
        yield _error(
            "broker.dead_s",
            f"heartbeat_s {broker.heartbeat_s:g}, suspect_s {broker.suspect_s:g} and dead_s {broker.dead_s:g} "
            "must rise, or healthy processes count as dead",
            "start from 1, 3 and 10",
        )
    if env.turn_deadline_s > env.episode_deadline_s:
        yield _error(
            "stages.env.turn_deadline_s",
            f"one turn may take {env.turn_deadline_s:g} s, the whole episode only {env.episode_deadline_s:g} s",
            f"set at most {env.episode_deadline_s:g}",
        )
    if host.backoff_s > host.backoff_max_s:
        yield _error(
            "host.backoff_s",
            f"the first restart waits longer than backoff_max_s, {host.backoff_max_s:g} s",
            f"set at most {host.backoff_max_s:g}",
        )


def _leases(config: PipelineConfig) -> Iterator[Finding]:
    held, longest = config.broker.lease_s["episodes"], config.stages.reward.timeout_s
    if held <= longest:
        yield _error(
            "broker.lease_s.episodes",
            f"an episode is given to another process after {held:g} s, a verifier may take {longest:g}",
            f"set more than {longest:g}, or a shorter stages.reward.timeout_s",
        )


def _versions(config: PipelineConfig) -> Iterator[Finding]:
    kept, lag = config.stages.weight_sync.keep_versions, config.schedule.lag_bound
    if kept < lag + 1:
        yield _warning(
            "stages.weight_sync.keep_versions",
            f"{kept} versions are kept, tokens of {lag + 1} may be in training",
            f"set at least {lag + 1}",
        )


def _slots(config: PipelineConfig, cores: int | None) -> Iterator[Finding]:
    if config.host.wait_for > 1:  # the others bring slots of their own
        return
    offered = cores if config.host.slots == "auto" else config.host.slots
    needed = slots_needed(config)
    if offered is not None and offered < needed:
        yield _error(
            "host.slots",
            f"{offered} offered, {needed} needed: one a rollout replica, one for actor-train and reference by turns",
            f"set host.slots = {needed}, or fewer stages.rollout.replicas",
        )


def _hosts(config: PipelineConfig) -> Iterator[Finding]:
    if config.host.wait_for > 1 and not config.broker.endpoint.startswith("tcp://"):
        yield _error(
            "host.wait_for",
            f"{config.host.wait_for} hosts are waited for, and only this machine reaches a broker that listens on a private socket",
            "set broker.endpoint to tcp://<address>:<port>, use --hosts, or set host.wait_for = 1",
        )
    most, wanted = config.stages.rollout.replicas_max, config.stages.rollout.replicas
    if 0 < most < wanted:
        yield _warning(
            "stages.rollout.replicas_max", f"{most} allows no more than the {wanted} of replicas", f"set more than {wanted}, or 0 for none"
        )
