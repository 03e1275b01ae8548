"""Checkpoints: all that a trainer needs to go on bit for bit, in directories named by step.

    checkpoints/step-00000012/   model.safetensors, config.json, tokenizer   a directory that transformers loads
                                 optimizer.safetensors                       AdamW's moments, by parameter name
                                 training.json                               step, lineage, digests, random state

Promises: a checkpoint appears whole, synced and at once, or not at all; what is loaded hashes to what was saved; a
damaged one is passed over for the one before, with a line in the log. Nothing is pickled. Knows no broker.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import structlog
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from schemas.errors import ModelError
from stages.actor_train.settings import TrainSettings
from stages.actor_train.worker import Trainer
from stages.model.checkpoint import WEIGHTS, load_decoder, overall_digest, save_decoder, tensor_digests
from stages.model.errors import CheckpointError
from stages.model.publishing import publish
from stages.model.tensor_file import file_tensors, manifest_digest

log = structlog.get_logger(__name__)

FORMAT = 1
OPTIMIZER, TRAINING = "optimizer.safetensors", "training.json"
PREFIX = "step-"


class TrainingState(Struct, frozen=True, kw_only=True):
    """`training.json`. Digests are those of `manifest_digest`."""

    format: int = FORMAT
    step: int
    lineage: int
    config_digest: str
    weights_digest: str
    optimizer_digest: str
    random_state: str
    """torch's CPU generator, base64."""


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"{PREFIX}{step:08d}"


def save_checkpoint(trainer: Trainer, directory: Path, step: int, lineage: int) -> Path:
    """Writes aside, syncs, renames.

    Replaces what stood there under the same step. Then deletes the oldest beyond the quota.
    """
    target = checkpoint_path(directory, step)
    aside = directory / f".{target.name}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    save_decoder(trainer.decoder, aside, tokenizer_from=trainer.settings.model_path)
    moments = _optimizer_tensors(trainer)
    save_file(moments, aside / OPTIMIZER)
    (aside / TRAINING).write_bytes(msgspec.json.format(msgspec.json.encode(_state(trainer, moments, step, lineage))) + b"\n")
    publish(aside, target)
    _prune(directory, trainer.settings.keep_checkpoints)
    return target


def _state(trainer: Trainer, moments: Mapping[str, Tensor], step: int, lineage: int) -> TrainingState:
    return TrainingState(
        step=step,
        lineage=lineage,
        config_digest=trainer.settings.digest,
        weights_digest=overall_digest(tensor_digests(trainer.decoder.state_dict())),
        optimizer_digest=overall_digest(tensor_digests(moments)),
        random_state=base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
    )


def load_latest(directory: Path, settings: TrainSettings) -> tuple[Trainer, TrainingState] | None:
    """The newest checkpoint that is whole; None where there is none at all.

    Raises CheckpointError where there are checkpoints and every one is damaged: to start anew from the starting
    model would throw the run away without a word.
    """
    found = _by_step(directory)
    for path in found:
        try:
            return load_checkpoint(path, settings)
        except (ModelError, OSError) as error:
            log.warning("checkpoint is damaged, falling back to the one before", checkpoint=str(path), reason=str(error))
    if found:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {directory} can be read; delete the folder to start anew from the starting model"
        )
    return None


def load_checkpoint(path: Path, settings: TrainSettings) -> tuple[Trainer, TrainingState]:
    """Raises CheckpointError where something is missing, of another format, or does not hash to what was saved."""
    state = _read_state(path)
    _check_digest(path / WEIGHTS, state.weights_digest, manifest_digest(file_tensors(path / WEIGHTS)))
    _check_digest(path / OPTIMIZER, state.optimizer_digest, manifest_digest(file_tensors(path / OPTIMIZER)))
    if state.config_digest != settings.digest:
        log.warning("checkpoint was written under other settings", checkpoint=str(path), step=state.step)
    trainer = Trainer(load_decoder(path, getattr(torch, settings.dtype), settings.device), settings)
    _restore_optimizer(trainer, path / OPTIMIZER)
    torch.set_rng_state(torch.from_numpy(np.frombuffer(base64.b64decode(state.random_state), np.uint8).copy()))
    return trainer, state


def _read_state(path: Path) -> TrainingState:
    try:
        state = msgspec.json.decode((path / TRAINING).read_bytes(), type=TrainingState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path / TRAINING} cannot be read: {error}") from error
    if state.format != FORMAT:
        raise CheckpointError(f"{path} has format {state.format}; this build reads format {FORMAT}")
    return state


def _check_digest(file: Path, saved: str, found: str) -> None:
    if saved != found:
        raise CheckpointError(f"{file} hashes to {found}, but {saved} was saved: the file was damaged")


def _optimizer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """`<moment>/<parameter>`: AdamW's exp_avg, exp_avg_sq and step of each parameter it has updated."""
    return {
        f"{moment}/{name}": tensor.detach().cpu().contiguous()
        for name, parameter in trainer.decoder.named_parameters()
        for moment, tensor in trainer.optimizer.state[parameter].items()
    }


def _restore_optimizer(trainer: Trainer, file: Path) -> None:
    parameters = dict(trainer.decoder.named_parameters())
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    for key, tensor in tensors.items():
        moment, _, name = key.partition("/")
        if name not in parameters:
            raise CheckpointError(f"{file} holds {key}, but the model has no parameter {name}")
        # AdamW keeps its step count on the CPU, whatever the device.
        device = tensor.device if moment == "step" else parameters[name].device
        trainer.optimizer.state[parameters[name]][moment] = tensor.to(device)


def _by_step(directory: Path) -> list[Path]:
    """Whole checkpoints, newest first; what was left half-written begins with a dot."""
    found = [path for path in directory.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(PREFIX)), reverse=True)


def _prune(directory: Path, keep: int) -> None:
    for path in _by_step(directory)[keep:]:
        shutil.rmtree(path)
