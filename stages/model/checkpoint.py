"""Model directories in Hugging Face's layout: `config.json`, safetensors (one file, or shards and an index), tokenizer.

Promises: a directory appears whole or not at all (written aside, synced, renamed); reading is strict about names and
shapes; digests cover dtype, shape and raw bytes. Knows no optimizer state and no versions.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stages.model.config import DecoderConfig, read_config
from stages.model.decoder import Decoder
from stages.model.device import usable
from stages.model.errors import CheckpointError, TensorMismatchError
from stages.model.publishing import publish

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def load_decoder(path: Path | str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
    """Reads a model directory into a Decoder; `dtype` None keeps the file's.

    Raises UnsupportedModelError, CheckpointError; ConfigError for a device that is not there.
    """
    device = usable(device)
    config = read_config(path)
    state = fitted_state(read_state(path), config, str(path))
    with torch.device("meta"):
        decoder = Decoder(config)
    wanted = dtype or next(iter(state.values())).dtype
    moved = {name: tensor.to(device=device, dtype=wanted) for name, tensor in state.items()}
    decoder.load_state_dict(moved, assign=True)
    return decoder.requires_grad_(True)


def read_state(path: Path | str) -> dict[str, Tensor]:
    """All tensors of a model directory, on the CPU, as stored. Raises CheckpointError on absent or damaged files."""
    directory = Path(path)
    state: dict[str, Tensor] = {}
    for name in _weight_files(directory):
        try:
            state.update(load_file(directory / name))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{directory / name} cannot be read: {error}") from error
    return state


def fitted_state(state: Mapping[str, Tensor], config: DecoderConfig, where: str) -> dict[str, Tensor]:
    """The same tensors, checked against the config; a redundant copy of tied embeddings is left out.

    Raises TensorMismatchError naming what is missing, not expected or misshapen.
    """
    expected = expected_shapes(config)
    found = dict(state)
    if config.tie_word_embeddings and "lm_head.weight" in found:
        _drop_tied_head(found, where)
    shared = expected.keys() & found.keys()
    misshapen = [
        f"{name} is {list(found[name].shape)}, expected {list(expected[name])}"
        for name in shared
        if tuple(found[name].shape) != expected[name]
    ]
    if misshapen or len(shared) != len(expected) or len(shared) != len(found):
        raise TensorMismatchError(where, expected.keys() - found.keys(), found.keys() - expected.keys(), misshapen)
    return found


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a decoder of this config holds."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in Decoder(config).state_dict().items()}


def save_decoder(decoder: Decoder, path: Path | str, tokenizer_from: Path | str | None = None, replace: bool = False) -> None:
    """Writes a directory that transformers' `AutoModelForCausalLM.from_pretrained` loads. See save_state."""
    save_state(decoder.state_dict(), decoder.config, path, tokenizer_from, replace)


def save_state(
    state: Mapping[str, Tensor],
    config: DecoderConfig,
    path: Path | str,
    tokenizer_from: Path | str | None = None,
    replace: bool = False,
) -> None:
    """Writes `state` as a model directory, durably and at once; copies the tokenizer files found in `tokenizer_from`.

    Raises CheckpointError where `path` exists and `replace` is not set, TensorMismatchError where the two differ.
    """
    target = Path(path)
    if target.exists() and not replace:
        raise CheckpointError(f"{target} exists already; remove it or choose another path")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    tensors = fitted_state(tensors, config, str(target))
    aside = target.parent / f".{target.name}.{os.getpid()}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(tensors, aside / WEIGHTS, metadata={"format": "pt"})
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    (aside / "config.json").write_text(json.dumps(config.to_hugging_face(dtype), indent=2) + "\n", encoding="utf-8")
    if tokenizer_from is not None:
        _copy_tokenizer(Path(tokenizer_from), aside)
    publish(aside, target)


def tensor_digests(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Digest of each tensor: xxh3-64, 16 hex digits, over "dtype:d0,d1,...;" and the raw little-endian bytes."""
    return {name: _digest(tensor) for name, tensor in sorted(state.items())}


def overall_digest(digests: Mapping[str, str]) -> str:
    """One digest of a whole state: xxh3-64, 16 hex digits, over "name=digest" lines in the order of the names."""
    lines = "".join(f"{name}={digest}\n" for name, digest in sorted(digests.items()))
    return xxhash.xxh3_64_hexdigest(lines.encode())


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous()
    dtype = str(flat.dtype).removeprefix("torch.")
    digest = xxhash.xxh3_64(f"{dtype}:{','.join(map(str, flat.shape))};".encode())
    digest.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _drop_tied_head(found: dict[str, Tensor], where: str) -> None:
    embedding = found.get("model.embed_tokens.weight")
    if embedding is not None and not torch.equal(found["lm_head.weight"], embedding):
        raise CheckpointError(f"{where}: tie_word_embeddings is set, yet lm_head.weight differs from the embeddings")
    del found["lm_head.weight"]


def _weight_files(directory: Path) -> list[str]:
    if (directory / INDEX).exists():
        try:
            shards = json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{directory / INDEX} is not an index of safetensors shards") from error
        return sorted(_inside(directory, name) for name in set(shards))
    if not (directory / WEIGHTS).exists():
        raise CheckpointError(f"{directory} holds neither {WEIGHTS} nor {INDEX}")
    return [WEIGHTS]


def _inside(directory: Path, name: str) -> str:
    """An index is data from elsewhere: it may name files of its own directory only."""
    if Path(name).name != name:
        raise CheckpointError(f"{directory / INDEX} names a file outside its directory: {name!r}")
    return name


def _copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
