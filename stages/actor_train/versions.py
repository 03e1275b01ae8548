"""Versions on disk: where the trainer puts the weights that it publishes.

    versions/<lineage>-<number>/   model.safetensors, config.json, tokenizer   a directory that transformers loads

Promises that a directory is never rewritten: publishing the same weights again gives the same record, and other
weights under a number that is taken (a resumed trainer made a step anew, and it came out differently) begin a new
lineage.
"""

from __future__ import annotations

from pathlib import Path

from schemas.records import TensorInfo, Version
from stages.model.checkpoint import save_decoder, tensor_digests
from stages.model.decoder import Decoder
from stages.model.errors import CheckpointError
from stages.model.tensor_file import directory_tensors, manifest_digest


def publish_version(decoder: Decoder, directory: Path, lineage: int, number: int, tokenizer_from: str) -> Version:
    """Writes the weights under the first lineage, from `lineage` on, whose directory is free or holds them already."""
    tensors = tensor_infos(decoder)
    digest = manifest_digest(tensors)
    while (place := directory / f"{lineage}-{number}").exists() and _digest_on_disk(place) != digest:
        lineage += 1
    if not place.exists():
        save_decoder(decoder, place, tokenizer_from)
    return Version(lineage=lineage, number=number, digest=digest, location=str(place), tensors=tensors)


def tensor_infos(decoder: Decoder) -> tuple[TensorInfo, ...]:
    """What the decoder's tensors hash to, sorted by name."""
    state = decoder.state_dict()
    return tuple(
        TensorInfo(name, str(state[name].dtype).removeprefix("torch."), tuple(state[name].shape), digest)
        for name, digest in sorted(tensor_digests(state).items())
    )


def _digest_on_disk(place: Path) -> str | None:
    try:
        return manifest_digest(directory_tensors(place))
    except CheckpointError:
        return None
