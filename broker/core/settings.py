"""What the core needs of a pipeline's config, as plain numbers; read once from the resolved config."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

BYTES_PER_TOKEN = 26
"""Room of one token on its way through the loop: ids, mask, both log-probs, and as much again while two copies are in flight."""

LEASE_SECONDS = 120.0
"""Hard deadline of a lease on a turn, episode, scored or sample; a ticket's is its episode's deadline and a minute."""
TICKET_LEASE_MARGIN_S = 60.0
GRANT_SECONDS = 120.0
"""A grant's deadline: an order of magnitude above a step; a holder that is later than that is hung."""
STOP_DRAIN_S = 1.5
"""How long a stop by signal waits for the step in hand; with 3 s for the processes, all is gone within 5 s."""


class Settings(Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes as named."""

    pipeline: str
    seed: int
    schedule: str
    """`sync` or `async`."""
    max_lag: int
    groups_per_step: int
    members: int
    min_members: int
    steps: int
    drop_uniform: bool
    max_refills: float
    reference_pass: bool
    """False where no KL is asked for: reward's output is routed to samples."""
    evaluation_problems: int
    evaluate_at_start: bool
    evaluate_at_end: bool
    max_episode_tokens: int
    episode_deadline_s: float
    replicas: dict[str, int]
    """Processes to run, by role."""
    heartbeat_s: float
    suspect_s: float
    dead_s: float
    grace_s: float
    max_deliveries: int
    member_retries: int
    budget_bytes: int
    drain_s: float
    stall_notice_s: float
    lease_s: dict[str, float]
    """Hard deadlines by queue."""
    wait_for: int = 1
    """Hosts before the first process is given to one."""
    head_roles: tuple[str, ...] = ()
    """Roles for hosts that share the run directory."""
    return_s: float = 60.0
    """How long a role that may run nowhere waits for its host."""
    rollouts_max: int = 0
    """Replicas at most, where slots are free."""


def settings_from_config(config: dict[str, Any]) -> Settings:
    """Picks the core's numbers out of a resolved config (`PipelineConfig.model_dump(mode="json")`)."""
    run, schedule, stages, broker = config["run"], config["schedule"], config["stages"], config["broker"]
    evaluation, env = config["evaluation"], stages["env"]
    return Settings(
        pipeline=config["pipeline"]["name"], seed=run["seed"], schedule=schedule["kind"], max_lag=schedule["max_lag"],
        groups_per_step=schedule["groups_per_step"], members=schedule["members"], min_members=schedule["min_members"],
        steps=schedule["steps"], drop_uniform=schedule["drop_uniform"], max_refills=schedule["max_refills"],
        reference_pass=config["algorithm"]["kl_coefficient"] > 0, evaluation_problems=evaluation["problems"],
        evaluate_at_start=evaluation["at_start"], evaluate_at_end=evaluation["at_end"],
        max_episode_tokens=env["max_episode_tokens"], episode_deadline_s=env["episode_deadline_s"],
        replicas=_replicas(stages, reference_pass=config["algorithm"]["kl_coefficient"] > 0),
        heartbeat_s=broker["heartbeat_s"], suspect_s=broker["suspect_s"], dead_s=broker["dead_s"], grace_s=broker["grace_s"],
        max_deliveries=broker["max_deliveries"], member_retries=broker["member_retries"], budget_bytes=broker["budget_bytes"],
        drain_s=run["drain_s"], stall_notice_s=broker["stall_notice_s"], lease_s=_lease_seconds(config),
        rollouts_max=stages["rollout"].get("replicas_max", 0), **_of_hosts(config.get("host", {})),
    )  # fmt: skip


def _replicas(stages: dict[str, Any], *, reference_pass: bool) -> dict[str, int]:
    return {
        "env": stages["env"]["replicas"], "rollout": stages["rollout"]["replicas"], "reward": stages["reward"]["replicas"],
        "reference": stages["reference"]["replicas"] if reference_pass else 0, "actor-train": 1, "weight-sync": 1,
    }  # fmt: skip


def _of_hosts(host: dict[str, Any]) -> dict[str, Any]:
    """A run that was recorded before there were several hosts has none of these keys."""
    return {"wait_for": host.get("wait_for", 1), "head_roles": tuple(host.get("head_roles", ())), "return_s": host.get("return_s", 60.0)}


def _lease_seconds(config: dict[str, Any]) -> dict[str, float]:
    named = config["broker"].get("lease_s") or {}
    ticket = config["stages"]["env"]["episode_deadline_s"] + TICKET_LEASE_MARGIN_S
    return {"tickets": ticket, "actions": ticket, **{key: float(value) for key, value in named.items()}}
