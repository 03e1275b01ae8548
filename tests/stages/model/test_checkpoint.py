from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from schemas.errors import ConfigError
from stages.model.checkpoint import (
    load_decoder,
    overall_digest,
    read_state,
    save_decoder,
    save_state,
    tensor_digests,
)
from stages.model.device import usable
from stages.model.errors import CheckpointError, TensorMismatchError
from tests.stages.model.builders import a_decoder, a_padded_batch, a_transformers_model, transformers_reads


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_what_we_save(tmp_path: Path, tied: bool) -> None:
    ours = a_decoder(tie_word_embeddings=tied)
    save_decoder(ours, tmp_path / "saved")
    tokens, _ = a_padded_batch(seed=1)
    with torch.no_grad():
        assert torch.allclose(transformers_reads(tmp_path / "saved")(tokens).logits, ours(tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_we_load_shards_that_transformers_saves(tmp_path: Path, tied: bool) -> None:
    theirs = a_transformers_model(tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    tokens, _ = a_padded_batch(seed=1)
    with torch.no_grad():
        assert torch.allclose(load_decoder(tmp_path)(tokens), theirs(tokens).logits, atol=1e-4, rtol=0)


def test_a_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    decoder = a_decoder()
    save_decoder(decoder, tmp_path / "saved")
    assert tensor_digests(read_state(tmp_path / "saved")) == tensor_digests(decoder.state_dict())


def test_loading_converts_to_the_wanted_dtype(tmp_path: Path) -> None:
    save_decoder(a_decoder(), tmp_path / "saved")
    loaded = load_decoder(tmp_path / "saved", torch.bfloat16)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert all(p.requires_grad for p in loaded.parameters())


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    save_decoder(a_decoder(), tmp_path / "saved")
    state = read_state(tmp_path / "saved")
    del state["model.norm.weight"]
    state["extra"] = torch.zeros(1)
    state["model.layers.0.mlp.up_proj.weight"] = torch.zeros(2, 3)
    save_file(state, tmp_path / "saved" / "model.safetensors")
    with pytest.raises(TensorMismatchError, match=r"model\.norm\.weight.*extra.*\[2, 3\], expected \[80, 48\]") as caught:
        load_decoder(tmp_path / "saved")
    assert caught.value.missing == ["model.norm.weight"]
    assert caught.value.unexpected == ["extra"]


def test_a_tied_head_in_the_file_must_equal_the_embeddings(tmp_path: Path) -> None:
    save_decoder(a_decoder(), tmp_path / "saved")
    state = read_state(tmp_path / "saved")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    save_file(state, tmp_path / "saved" / "model.safetensors")
    load_decoder(tmp_path / "saved")
    state["lm_head.weight"][0, 0] += 1
    save_file(state, tmp_path / "saved" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        load_decoder(tmp_path / "saved")


def test_a_directory_without_weights_or_with_damaged_ones_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds neither"):
        read_state(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights here, only words")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_state(tmp_path)


def test_an_index_may_not_lead_out_of_its_directory(tmp_path: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside its directory"):
        read_state(tmp_path)


def test_a_save_leaves_nothing_else_behind_and_does_not_overwrite_unasked(tmp_path: Path) -> None:
    save_decoder(a_decoder(seed=1), tmp_path / "saved")
    with pytest.raises(CheckpointError, match="exists already"):
        save_decoder(a_decoder(seed=2), tmp_path / "saved")
    save_decoder(a_decoder(seed=2), tmp_path / "saved", replace=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]
    assert tensor_digests(read_state(tmp_path / "saved")) == tensor_digests(a_decoder(seed=2).state_dict())


def test_a_state_that_does_not_fit_its_config_is_not_saved(tmp_path: Path) -> None:
    decoder = a_decoder()
    state = decoder.state_dict()
    del state["model.norm.weight"]
    with pytest.raises(TensorMismatchError):
        save_state(state, decoder.config, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_tokenizer_files_come_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "notes.txt").write_text("stays")
    save_decoder(a_decoder(), tmp_path / "saved", tokenizer_from=source)
    assert sorted(f.name for f in (tmp_path / "saved").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_digests_see_values_shapes_and_dtypes() -> None:
    zeros = torch.zeros(2, 6)
    variants = [
        zeros,
        zeros + 1,
        zeros.view(3, 4),
        zeros.to(torch.float64)[:, :3].contiguous(),
        zeros.to(torch.bfloat16),
    ]
    digests = [tensor_digests({"x": tensor})["x"] for tensor in variants]
    assert len(set(digests)) == len(variants)
    assert all(len(digest) == 16 for digest in digests)
    assert tensor_digests({"x": zeros.t().contiguous().t()}) == tensor_digests({"x": zeros})


def test_the_overall_digest_does_not_depend_on_order() -> None:
    first, second = {"a": "1" * 16, "b": "2" * 16}, {"b": "2" * 16, "a": "1" * 16}
    assert overall_digest(first) == overall_digest(second)
    assert overall_digest(first) != overall_digest(first | {"b": "3" * 16})


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="cuda:99"):
        usable("cuda:99")
