"""Versions as changed bytes: made from real safetensors files, fetched, applied, and given up for the whole where they fail."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from schemas.errors import BlobError
from schemas.messages import Source
from schemas.records import BlobDelta
from stages.blobs.cache import Cache
from stages.blobs.delta import BLOCK_BYTES, apply_delta, write_delta
from stages.blobs.depot import chain_to
from stages.blobs.outline import directory_files, file_outline
from tests.stages.blobs.builders import PLENTY, a_depot, model_file, same, serving

SHAPES = {"model.embed_tokens.weight": (300, 64), "model.norm.weight": (64,), "model.layers.0.q.weight": (64, 64)}


def weights(dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=made).to(dtype) for name, shape in SHAPES.items()}


def stepped(state: dict[str, torch.Tensor], size: float, seed: int) -> dict[str, torch.Tensor]:
    """The same weights after a step of about this size."""
    made = torch.Generator().manual_seed(seed)
    return {name: (old.float() + size * torch.randn(old.shape, generator=made)).to(old.dtype) for name, old in state.items()}


def a_version(place: Path, state: dict[str, torch.Tensor]) -> Path:
    place.mkdir(parents=True)
    save_file(state, place / "model.safetensors")
    (place / "config.json").write_text("{}")
    return place


def versions(run: Path, count: int, dtype: torch.dtype = torch.bfloat16, size: float = 1e-3) -> list[Path]:
    """A chain of versions in one run."""
    state = weights(dtype)
    made = []
    for number in range(count):
        made.append(a_version(run / f"0-{number}", state))
        state = stepped(state, size, number + 1)
    return made


def delta_between(old: Path, new: Path, cache: Cache) -> BlobDelta:
    """Made and kept as weight-sync does."""
    base, result = model_file(directory_files(old)), model_file(directory_files(new))
    made = cache.partial("made")
    size = write_delta(old / base.name, base.digest, new / result.name, result.digest, made)
    assert size is not None
    digest = file_outline(made).digest
    cache.adopt(made, digest, size)
    return BlobDelta(base.digest, result.digest, digest, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-3, 1.0])
def test_a_delta_gives_the_new_file(tmp_path: Path, dtype: torch.dtype, size: float) -> None:
    old, new = versions(tmp_path, 2, dtype, size)
    target = tmp_path / "delta"
    digest = file_outline(new / "model.safetensors").digest
    written = write_delta(old / "model.safetensors", "base", new / "model.safetensors", digest, target)
    if written is None:
        assert size == 1.0, "a small step has a delta"
        return
    assert target.stat().st_size == written < (new / "model.safetensors").stat().st_size
    descriptor = os.open(tmp_path / "made", os.O_RDWR | os.O_CREAT)
    apply_delta(old / "model.safetensors", target, descriptor, digest)
    os.close(descriptor)
    assert (tmp_path / "made").read_bytes() == (new / "model.safetensors").read_bytes()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_two_files_of_one_layout_have_a_delta_or_none_is_smaller(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    place = tmp_path_factory.mktemp("pair")
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.int64]))
    count = data.draw(st.sampled_from([1, 7, 1000, BLOCK_BYTES // 4 + 3]))
    made = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    old = torch.randint(-100, 100, (count,), generator=made).to(dtype)
    share = data.draw(st.sampled_from([0.0, 0.001, 0.1, 1.0]))
    new = torch.where(torch.rand(count, generator=made) < share, torch.randint(-100, 100, (count,), generator=made).to(dtype), old)
    for name, tensor in (("old", old), ("new", new)):
        save_file({"a": tensor, "b": tensor[:1].clone()}, place / name)
    digest = file_outline(place / "new").digest
    if write_delta(place / "old", "base", place / "new", digest, place / "delta") is not None:
        descriptor = os.open(place / "made", os.O_RDWR | os.O_CREAT)
        apply_delta(place / "old", place / "delta", descriptor, digest)
        os.close(descriptor)
        assert (place / "made").read_bytes() == (place / "new").read_bytes()


def test_another_layout_has_no_delta(tmp_path: Path) -> None:
    one = a_version(tmp_path / "one", weights(torch.float32))
    other = a_version(tmp_path / "other", weights(torch.bfloat16))
    fewer = a_version(tmp_path / "fewer", {"model.norm.weight": torch.zeros(64)})
    for new in (other, fewer):
        assert write_delta(one / "model.safetensors", "a", new / "model.safetensors", "b", tmp_path / "delta") is None


def test_a_host_that_holds_the_version_before_gets_what_changed(tmp_path: Path) -> None:
    run = versions(tmp_path / "run", 3)
    sender = Cache(tmp_path / "sender", PLENTY)
    deltas = [delta_between(old, new, sender) for old, new in itertools.pairwise(run)]
    with serving(tmp_path / "run", cache=sender) as (_, source), a_depot(tmp_path / "cache") as depot:
        depot.directory(directory_files(run[0]), str(run[0]), [source])
        for directory, delta in zip(run[1:], deltas, strict=True):
            held = depot.directory(directory_files(directory), str(directory), [source], [delta])
            assert same(held.path, directory)
            assert held.bytes == delta.bytes < held.full_bytes


def test_a_host_that_is_behind_follows_the_chain(tmp_path: Path) -> None:
    run = versions(tmp_path / "run", 4, size=1e-5)
    sender = Cache(tmp_path / "sender", PLENTY)
    deltas = [delta_between(old, new, sender) for old, new in itertools.pairwise(run)]
    with serving(tmp_path / "run", cache=sender) as (_, source), a_depot(tmp_path / "cache") as depot:
        depot.directory(directory_files(run[0]), str(run[0]), [source])
        held = depot.directory(directory_files(run[3]), str(run[3]), [source], deltas[::-1])
        assert same(held.path, run[3])
        assert held.bytes == sum(delta.bytes for delta in deltas)


def lose_the_delta(sender: Cache, delta: BlobDelta, receiver: Cache, base: str) -> None:
    (sender.directory / "blobs" / delta.digest).unlink()


def spoil_the_base(sender: Cache, delta: BlobDelta, receiver: Cache, base: str) -> None:
    file = receiver.directory / "blobs" / base
    data = bytearray(file.read_bytes())
    data[-9] ^= 0xFF
    file.write_bytes(data)


def break_the_chain(sender: Cache, delta: BlobDelta, receiver: Cache, base: str) -> None:
    for tree in (receiver.directory / "trees").iterdir():
        for file in tree.iterdir():
            file.unlink()
    (receiver.directory / "blobs" / base).unlink()


@pytest.mark.parametrize("accident", [lose_the_delta, spoil_the_base, break_the_chain])
def test_where_a_delta_fails_the_whole_comes(tmp_path: Path, accident: Callable[[Cache, BlobDelta, Cache, str], None]) -> None:
    old, new = versions(tmp_path / "run", 2)
    sender = Cache(tmp_path / "sender", PLENTY)
    delta = delta_between(old, new, sender)
    with serving(tmp_path / "run", cache=sender) as (_, source), a_depot(tmp_path / "cache") as depot:
        depot.directory(directory_files(old), str(old), [source]).release()
        accident(sender, delta, depot.cache, delta.base)
        held = depot.directory(directory_files(new), str(new), [source], [delta])
        assert same(held.path, new)
        assert held.bytes >= model_file(directory_files(new)).bytes


def test_a_delta_is_not_taken_where_the_whole_is_less(tmp_path: Path) -> None:
    old, new = versions(tmp_path / "run", 2)
    with serving(tmp_path / "run") as (_, source), a_depot(tmp_path / "cache") as depot:
        depot.directory(directory_files(old), str(old), [source])
        files = directory_files(new)
        dear = BlobDelta(model_file(directory_files(old)).digest, model_file(files).digest, "0" * 16, model_file(files).bytes)
        held = depot.directory(files, str(new), [source], [dear])
        assert held.bytes == model_file(files).bytes


@pytest.mark.parametrize("spoil", [lambda data: data[:-5], lambda data: data[:40], lambda data: b"x" + data[1:], lambda data: b""])
def test_a_delta_that_is_cut_or_none_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    old, new = versions(tmp_path, 2)
    digest = file_outline(new / "model.safetensors").digest
    write_delta(old / "model.safetensors", "base", new / "model.safetensors", digest, tmp_path / "delta")
    (tmp_path / "delta").write_bytes(spoil((tmp_path / "delta").read_bytes()))
    descriptor = os.open(tmp_path / "made", os.O_RDWR | os.O_CREAT)
    with pytest.raises(BlobError):
        apply_delta(old / "model.safetensors", tmp_path / "delta", descriptor, digest)
    os.close(descriptor)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_flipped_bit_in_a_delta_never_gives_another_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    place = tmp_path_factory.mktemp("flip")
    old, new = versions(place, 2)
    digest = file_outline(new / "model.safetensors").digest
    write_delta(old / "model.safetensors", "base", new / "model.safetensors", digest, place / "delta")
    raw = bytearray((place / "delta").read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (place / "delta").write_bytes(raw)
    descriptor = os.open(place / "made", os.O_RDWR | os.O_CREAT)
    try:
        apply_delta(old / "model.safetensors", place / "delta", descriptor, digest)
        assert (place / "made").read_bytes() == (new / "model.safetensors").read_bytes(), "a bit that means nothing"
    except BlobError:
        pass
    finally:
        os.close(descriptor)


def test_chains_lead_from_what_is_here_and_never_in_circles() -> None:
    deltas = [BlobDelta("b", "c", "x", 1), BlobDelta("a", "b", "y", 1), BlobDelta("c", "a", "z", 1)]
    assert [delta.result for delta in chain_to("c", deltas, lambda digest: digest == "a")] == ["b", "c"]
    assert chain_to("c", deltas, lambda digest: False) == []
    assert chain_to("d", deltas, lambda digest: True) == []


def test_sources_are_needed_only_for_what_is_missing(tmp_path: Path) -> None:
    (version,) = versions(tmp_path / "run", 1)
    with a_depot(tmp_path / "cache") as depot, pytest.raises(BlobError, match="silent|nobody listens"):
        depot.directory(directory_files(version), str(version), [Source("tcp://127.0.0.1:1")])
