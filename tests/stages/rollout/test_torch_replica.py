"""The embedded engine under the stage: real weights, read, proven, installed, and played with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.messages import InstallFailed, Receipt
from schemas.records import Install
from stages.model.checkpoint import save_decoder
from stages.model.tensor_file import directory_tensors, manifest_digest
from stages.rollout.stage import Rollout
from stages.rollout.torch_replica import tensors_in_use, torch_replica
from tests.stages.env.builders import FakeLink, a_welcome
from tests.stages.model.builders import a_decoder
from tests.stages.rollout.stage_builders import a_turn, finish, order


def a_version(at: Path, seed: int, **config: Any) -> Install:
    """A model directory of random weights, and the order to install it as version `seed`."""
    save_decoder(a_decoder(seed, vocab_size=100, **config), at)
    tensors = directory_tensors(at)
    return Install(lineage=0, number=seed, digest=manifest_digest(tensors), location=str(at), tensors=tensors)


def begin(model: Path, **rollout: Any) -> tuple[Rollout, FakeLink]:
    stage, link = Rollout(), FakeLink()
    stage.start(a_welcome(model, stages__rollout=rollout), link)
    return stage, link


@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": False, "attention_bias": True}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replica_proves_the_version_that_it_uses(tmp_path: Path, config: dict[str, Any], dtype: str) -> None:
    a_version(tmp_path / "start", 0, **config)
    record = a_version(tmp_path / "v1", 1, **config)
    stage, link = begin(tmp_path / "start", dtype=dtype)
    order(stage, record)
    stage.work()
    receipt = link.sent[0]
    assert isinstance(receipt, Receipt), receipt
    assert (receipt.number, receipt.digest) == (1, record.digest)


def test_weights_changed_on_their_way_are_refused_and_the_old_stay(tmp_path: Path) -> None:
    first, second = a_version(tmp_path / "v1", 1), a_version(tmp_path / "v2", 2)
    stage, link = begin(tmp_path / "v1")
    order(stage, first)
    file = tmp_path / "v2" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, file)
    order(stage, second)
    finish(stage)
    failed = link.sent[-1]
    assert isinstance(failed, InstallFailed)
    assert "model.norm.weight among them" in failed.reason
    assert stage.hello().installed == 1


def test_taking_the_engines_weights_apart_gives_the_file_again(tmp_path: Path) -> None:
    a_version(tmp_path / "v1", 1)
    stage, _ = begin(tmp_path / "v1")
    decoder = stage._replica.weights._decoder  # type: ignore[attr-defined]
    used, stored = tensors_in_use(decoder), load_file(tmp_path / "v1" / "model.safetensors")
    assert used.keys() == stored.keys()
    assert all(torch.equal(used[name], stored[name]) for name in stored)


def test_a_session_is_played_over_two_turns_and_an_install(tmp_path: Path) -> None:
    first, second = a_version(tmp_path / "v1", 1), a_version(tmp_path / "v2", 2)
    stage, link = begin(tmp_path / "v1")
    order(stage, first)
    finish(stage)
    stage.deliver(a_turn(41, [1, 2, 3]))
    finish(stage)
    said = link.commits[0].puts[0].record.tokens.tolist()
    order(stage, second)
    finish(stage)
    before = (1, 2, 3, *said)
    stage.deliver(a_turn(42, [5, 6], before=before, held=len(before), turn=1))
    finish(stage)
    action = link.commits[1].puts[0].record
    assert {span.version for span in action.sample_spans} == {2}
    assert [span.version for span in action.kv_spans] == [1, 2]
    assert action.tokens.size == action.logprobs.size


def test_the_config_reaches_the_engine(tmp_path: Path) -> None:
    from schemas.config import PipelineConfig

    a_version(tmp_path / "v1", 1)
    welcome = a_welcome(tmp_path / "v1", stages__rollout={"max_running": 5, "kv_tokens": 500, "prefill_tokens": 77})
    engine: Any = torch_replica(PipelineConfig.model_validate(welcome.config)).engine
    limits = engine.limits
    assert (limits.max_rows, limits.kv_tokens, limits.prefill_tokens, limits.max_context_tokens) == (5, 500, 77, 192)
