"""Reading and hashing safetensors without torch."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stages.model.checkpoint import overall_digest, tensor_digests
from stages.model.errors import CheckpointError
from stages.model.tensor_file import DTYPES, directory_tensors, file_tensors, manifest_digest


def tensors_of_every_dtype() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dtypes = [getattr(torch, name) for name, _ in DTYPES.values()]
    found = {f"t{dtype}": (3 * torch.randn(3, 5, generator=generator)).to(dtype) for dtype in dtypes}
    return found | {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}


def test_digests_are_those_that_torch_computes(tmp_path: Path) -> None:
    tensors = tensors_of_every_dtype()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = file_tensors(tmp_path / "model.safetensors")
    assert {info.name: info.digest for info in found} == tensor_digests(tensors)
    assert {info.name: info.shape for info in found} == {name: tuple(t.shape) for name, t in tensors.items()}
    assert {f"torch.{info.dtype}" for info in found} == {str(tensor.dtype) for tensor in tensors.values()}
    assert manifest_digest(found) == overall_digest(tensor_digests(tensors))


def test_shards_are_read_as_one_state(tmp_path: Path) -> None:
    tensors = tensors_of_every_dtype()
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[::2]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, tmp_path / "model-00002-of-00002.safetensors")
    assert manifest_digest(directory_tensors(tmp_path)) == overall_digest(tensor_digests(tensors))


def header(entries: object, data: bytes = b"\0" * 16) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01",
        b"\xff" * 64,
        (10).to_bytes(8, "little") + b"not json!!",
        header([1, 2]),
        header({"a": {"dtype": "F32"}}),
        header({"a": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}),
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]}}),
        header({"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}}),
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}),
        header({"a": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}),
        header({"a": {"dtype": "F32", "shape": ["4"], "data_offsets": [0, 16]}}),
    ],
)
def test_a_damaged_file_is_a_checkpoint_error(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError):
        file_tensors(tmp_path / "model.safetensors")


def test_an_absent_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        file_tensors(tmp_path / "absent.safetensors")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        directory_tensors(tmp_path)
