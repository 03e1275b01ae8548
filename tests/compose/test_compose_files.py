"""What compose/docker-compose.yml promises of each container, read off the file; tests/docker/ runs it on an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.edges import STAGES

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
WRITERS = {"broker", "actor-train", "weight-sync"}
"""Who writes into the run directory."""
READERS = {"rollout", "reference"}
"""Who reads versions there."""
GRACE_S = 10


def services(file: str = "docker-compose.yml") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / file).read_text())["services"]
    return found


LASTING = sorted(set(services()) - {"keys"})


def test_each_process_of_a_run_is_a_service_and_there_is_no_other() -> None:
    assert set(services()) == {"keys", "broker", *(role.value for role in STAGES)}


@pytest.mark.parametrize("name", sorted(services()))
def test_a_container_may_do_what_it_needs_and_no_more(name: str) -> None:
    service = services()[name]
    assert service["read_only"]
    assert service["init"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["cpus"]
    assert service["pids_limit"]


@pytest.mark.parametrize("name", LASTING)
def test_a_container_is_ready_by_its_own_word_restarts_after_a_crash_and_leaves_in_time(name: str) -> None:
    service = services()[name]
    assert "/tmp/healthy" in service["healthcheck"]["test"][1]
    assert service["restart"].startswith("on-failure:")
    assert int(service["stop_grace_period"].removesuffix("s")) < GRACE_S


@pytest.mark.parametrize("role", [role.value for role in STAGES])
def test_a_stage_sees_its_own_key_and_writes_only_what_it_has_to(role: str) -> None:
    mounts = services()[role]["volumes"]
    assert [mount for mount in mounts if "key" in mount] == [f"key-{role}:/key:ro"]
    runs = [mount for mount in mounts if mount.startswith("runs:")]
    assert runs == (["runs:/tidemill/runs"] if role in WRITERS else ["runs:/tidemill/runs:ro"] if role in READERS else [])
    assert services()[role]["depends_on"] == {"broker": {"condition": "service_healthy"}}
    assert services()[role]["command"].split()[:3] == [role, "--broker", "tcp://broker:7700"]


def test_the_one_shot_service_makes_a_key_for_each_role() -> None:
    script = (COMPOSE / "keys.sh").read_text()
    assert f"for role in {' '.join(role.value for role in STAGES)};" in script
    assert {mount.split(":")[0] for mount in services()["keys"]["volumes"]} == {"keys", *(f"key-{role.value}" for role in STAGES)}
    assert services()["keys"]["restart"] == "no"


def test_the_overlay_gives_gpus_to_those_who_compute() -> None:
    overlay = services("docker-compose.gpu.yml")
    equipped = {name for name, service in overlay.items() if "deploy" in service}
    assert equipped == {"rollout", "reference", "actor-train"}
    for name in equipped:
        (device,) = overlay[name]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert overlay[name]["shm_size"]
        assert overlay[name]["ulimits"]
    assert set(overlay) == set(services())


def test_the_image_is_built_without_a_frontend_from_elsewhere() -> None:
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    assert not [line for line in lines if line.replace(" ", "").lower().startswith("#syntax=")]
    assert "USER tidemill" in lines
    assert "ARG WHEELS_IMAGE=scratch" in lines
