"""Versions from another machine: fetched while turns are played, refused where they cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from schemas.codec import encode_record, make_header
from schemas.messages import Credit, InstallFailed, InstallOrder, Receipt, Source
from schemas.records import Install
from stages.blobs.cache import DIRECTORY_VARIABLE, Cache
from stages.blobs.outline import directory_files
from stages.model.checkpoint import read_state
from stages.model.tensor_file import directory_tensors, manifest_digest
from stages.rollout.fake_engine import FakeEngine
from stages.rollout.stage import Rollout
from stages.rollout.weights import Replica, State
from tests.stages.blobs.builders import PLENTY, a_depot, serving
from tests.stages.blobs.test_deltas import delta_between, versions
from tests.stages.env.builders import FakeLink, a_welcome, work_until
from tests.stages.rollout.stage_builders import a_turn


class FileWeights:
    """Reads real files; what the fake engine has is what was read."""

    def read(self, location: str) -> State:
        return {"read": directory_tensors(location)} | read_state(location)

    def digests(self, state: State) -> dict[str, str]:
        return {info.name: info.digest for info in state["read"]}

    def digest_in_use(self, state: State) -> str:
        return manifest_digest(state["read"])


def an_order(directory: Path, number: int, location: str = "") -> Install:
    """As weight-sync orders a version, for a machine that does not see its directory."""
    tensors = directory_tensors(directory)
    return Install(
        lineage=0, number=number, digest=manifest_digest(tensors), location=location or f"/of/another/machine/0-{number}", tensors=tensors,
        files=directory_files(directory),
    )  # fmt: skip


def give(stage: Rollout, order: Install, *sources: Source) -> None:
    frames = encode_record(order)
    header = make_header(order, frames, pipeline="test", queue="installs", newest_version=order.number)
    stage.order(InstallOrder(header=header, sources=sources), frames)


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rollout, FakeLink]]:
    """A stage whose machine has an empty cache."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    stage, link = Rollout(engine_factory=lambda config: Replica(FakeEngine(version=-1), FileWeights())), FakeLink()
    stage.start(a_welcome(tmp_path), link)
    yield stage, link
    stage.close()


@pytest.fixture
def sender(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "sender", PLENTY)


def store(sender: Cache, directory: Path) -> None:
    """The sender's machine has these files in its cache, under no place that anybody else knows."""
    with a_depot(sender.directory) as depot, serving(directory.parent) as (_, source):
        depot.directory(directory_files(directory), str(directory), [source]).release()


def test_a_version_comes_over_the_network_and_the_receipt_says_what_it_cost(
    begun: tuple[Rollout, FakeLink], sender: Cache, tmp_path: Path
) -> None:
    stage, link = begun
    (version,) = versions(tmp_path / "run", 1)
    store(sender, version)
    with serving(cache=sender) as (_, source):
        give(stage, an_order(version, 0), source)
        work_until(stage, lambda: len(link.sent) == 2)
    receipt, credit = link.sent
    assert isinstance(receipt, Receipt)
    assert isinstance(credit, Credit)
    assert receipt.digest == manifest_digest(directory_tensors(version))
    assert receipt.metrics["bytes"] == receipt.metrics["full_bytes"] == sum(info.bytes for info in directory_files(version))
    assert stage.stats()["fetched_bytes_total"] == receipt.metrics["bytes"]


def test_the_next_version_comes_as_what_changed(begun: tuple[Rollout, FakeLink], sender: Cache, tmp_path: Path) -> None:
    stage, link = begun
    old, new = versions(tmp_path / "run", 2)
    for version in (old, new):
        store(sender, version)
    delta = delta_between(old, new, sender)
    with serving(cache=sender) as (_, source):
        give(stage, an_order(old, 0), source)
        give(stage, replace(an_order(new, 1), deltas=(delta,)), source)
        work_until(stage, lambda: len([each for each in link.sent if isinstance(each, Receipt)]) == 2)
    last = link.sent[-1]
    assert isinstance(last, Receipt)
    assert last.metrics["bytes"] == delta.bytes < last.metrics["full_bytes"]
    assert last.number == 1


def test_turns_are_played_while_a_version_comes(begun: tuple[Rollout, FakeLink], sender: Cache, tmp_path: Path) -> None:
    stage, link = begun
    old, new = versions(tmp_path / "run", 2)
    give(stage, an_order(old, 0, location=str(old)))
    stage.work()
    store(sender, new)
    with serving(cache=sender) as (_, source):
        give(stage, an_order(new, 1), Source("tcp://127.0.0.1:1"), source)
        stage.deliver(a_turn(41, [1, 2, 3]))
        stage.work()
        work_until(stage, lambda: len(link.commits) == 1)
        assert link.commits[0].puts[0].record.sample_spans[0].version == 0
        work_until(stage, lambda: stage.hello().installed == 1)


def test_a_directory_of_that_name_with_other_weights_is_not_taken_for_the_version(
    begun: tuple[Rollout, FakeLink], sender: Cache, tmp_path: Path
) -> None:
    stage, link = begun
    old, new = versions(tmp_path / "run", 2)
    store(sender, new)
    with serving(cache=sender) as (_, source):
        give(stage, an_order(new, 1, location=str(old)), source)
        work_until(stage, lambda: bool(link.sent))
    assert isinstance(link.sent[0], Receipt)
    assert link.sent[0].digest == manifest_digest(directory_tensors(new))


def test_what_nobody_serves_is_refused_with_what_to_do(begun: tuple[Rollout, FakeLink], tmp_path: Path) -> None:
    stage, link = begun
    (version,) = versions(tmp_path / "run", 1)
    give(stage, an_order(version, 0))
    stage.work()
    (failed,) = link.sent
    assert isinstance(failed, InstallFailed)
    assert "tidemill host" in failed.reason


def test_files_that_are_not_the_orders_tensors_are_refused(begun: tuple[Rollout, FakeLink], sender: Cache, tmp_path: Path) -> None:
    stage, link = begun
    old, new = versions(tmp_path / "run", 2)
    store(sender, old)
    with serving(cache=sender) as (_, source):
        give(stage, replace(an_order(new, 1), files=directory_files(old)), source)
        work_until(stage, lambda: bool(link.sent))
    assert isinstance(link.sent[0], InstallFailed)
    assert "does not hash to" in link.sent[0].reason
    assert stage.hello().installed is None


def test_a_stage_that_ends_in_the_middle_of_a_fetch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    stage = Rollout(engine_factory=lambda config: Replica(FakeEngine(version=-1), FileWeights()))
    stage.start(a_welcome(tmp_path), FakeLink())
    (version,) = versions(tmp_path / "run", 1, torch.float32)
    give(stage, an_order(version, 0), Source("tcp://127.0.0.1:1"))
    stage.work()
    stage.close()
