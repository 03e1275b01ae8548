"""Checks across keys: each predicted deadlock is found, names its key and says how to mend it."""

from pathlib import Path

import pytest

from broker.core import settings as broker_settings
from schemas.config import ModelFacts, brief, describe, plan, processes, ticket_room_bytes, to_toml
from schemas.config.plan import BYTES_PER_TOKEN
from tests.schemas.config.builders import a_config

FACTS = ModelFacts(model_type="qwen3", max_position_embeddings=256)


def test_the_defaults_have_no_findings(tmp_path: Path) -> None:
    assert plan(a_config(tmp_path), FACTS, cores=2) == []


@pytest.mark.parametrize(
    ("override", "level", "key"),
    [
        ("schedule.members=1", "error", "schedule.members"),
        ("schedule.min_members=9", "error", "schedule.min_members"),
        ("stages.env.sessions=4", "warning", "stages.env.sessions"),
        ("algorithm.warmup_steps=24", "warning", "algorithm.warmup_steps"),
        ("sampling.max_turn_tokens=193", "error", "sampling.max_turn_tokens"),
        ("stages.env.max_episode_tokens=257", "error", "stages.env.max_episode_tokens"),
        ("stages.rollout.kv_tokens=191", "error", "stages.rollout.kv_tokens"),
        ("stages.rollout.kv_tokens=192", "warning", "stages.rollout.kv_tokens"),
        ("stages.reference.batch_tokens=191", "error", "stages.reference.batch_tokens"),
        ("stages.actor_train.micro_batch_tokens=191", "error", "stages.actor_train.micro_batch_tokens"),
        ("broker.budget_bytes=1000", "error", "broker.budget_bytes"),
        ("broker.budget_bytes=800000", "warning", "broker.budget_bytes"),
        ("broker.max_frame_bytes=767", "error", "broker.max_frame_bytes"),
        ("broker.segment_bytes=65536", "warning", "broker.segment_bytes"),
        ("broker.dead_s=3.0", "error", "broker.dead_s"),
        ("stages.env.turn_deadline_s=301", "error", "stages.env.turn_deadline_s"),
        ("host.backoff_s=11", "error", "host.backoff_s"),
        ("broker.lease_s.episodes=10", "error", "broker.lease_s.episodes"),
        ("stages.weight_sync.keep_versions=2", "warning", "stages.weight_sync.keep_versions"),
        ("host.slots=1", "error", "host.slots"),
        ("stages.rollout.replicas=2", "error", "host.slots"),
        ("host.wait_for=2", "error", "host.wait_for"),
    ],
)
def test_a_predicted_trouble_is_found_where_it_stands(tmp_path: Path, override: str, level: str, key: str) -> None:
    findings = plan(a_config(tmp_path, override), FACTS, cores=2)
    assert (level, key) in [(finding.level, finding.key) for finding in findings]


def test_a_finding_says_what_and_how_to_mend_it(tmp_path: Path) -> None:
    (finding,) = plan(a_config(tmp_path, "schedule.min_members=9"), FACTS, cores=2)
    said = "error: schedule.min_members: 9 members cannot come through where a group has 8; set at most 8"
    assert str(finding) == said


def test_a_round_of_sync_has_to_fit_into_the_budget(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    room = ticket_room_bytes(config) * config.schedule.members * config.schedule.groups_per_step
    short = a_config(tmp_path, "schedule.kind=sync", f"broker.budget_bytes={room - 1}")
    enough = a_config(tmp_path, "schedule.kind=sync", f"broker.budget_bytes={room}")
    assert [finding.level for finding in plan(short)] == ["error"]
    assert plan(enough) == []


def test_the_check_reckons_with_the_room_that_the_broker_charges() -> None:
    assert BYTES_PER_TOKEN == broker_settings.BYTES_PER_TOKEN


def test_the_brokers_core_finds_its_numbers_in_the_resolved_configuration(tmp_path: Path) -> None:
    config = a_config(tmp_path, "schedule.kind=sync", "broker.lease_s.turns=7.5")
    settings = broker_settings.settings_from_config(config.model_dump(mode="json"))
    assert (settings.pipeline, settings.schedule, settings.members) == ("small", "sync", 8)
    assert (settings.lease_s["turns"], settings.lease_s["samples"], settings.lease_s["tickets"]) == (7.5, 120.0, 360.0)


def test_what_depends_on_the_machine_is_not_checked_without_it(tmp_path: Path) -> None:
    assert plan(a_config(tmp_path, "stages.rollout.replicas=64", "stages.rollout.kv_tokens=1000000")) == []


def test_without_a_kl_term_no_reference_process_is_started(tmp_path: Path) -> None:
    assert processes(a_config(tmp_path))["reference"] == 1
    without = a_config(tmp_path, "algorithm.kl_coefficient=0")
    assert processes(without)["reference"] == 0
    assert "reference: not started" in describe(without)


def test_the_short_view_names_what_is_not_at_its_default_and_nothing_else(tmp_path: Path) -> None:
    shown = brief(a_config(tmp_path, "schedule.steps=7", "stages.reward.weights.near=0.5", "broker.lease_s.turns=9")).splitlines()
    for line in ("  schedule.steps = 7", "  stages.reward.weights.near = 0.5", "  broker.lease_s.turns = 9.0"):
        assert line in shown
    assert not [line for line in shown if line.startswith(("  schedule.kind", "  broker.heartbeat_s"))]


def test_every_key_is_shown_to_some_process(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    shown = {line.strip() for line in describe(config).splitlines()}
    missing = [line for line in to_toml(config).splitlines() if line and line not in shown]
    assert missing == []
