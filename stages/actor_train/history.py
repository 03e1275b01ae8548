"""The weights through time: from the newest checkpoint or the starting model, one optimizer step after the other.

Owns the trainer, the run's `checkpoints/`, and what is written to `versions/`. Promises that `step` is what the weights in
memory have taken, and `saved` what a whole, synced checkpoint holds. Knows no plan and no broker.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import structlog
import torch

from schemas.records import Version
from stages.actor_train.checkpoint import load_latest, save_checkpoint
from stages.actor_train.settings import TrainSettings
from stages.actor_train.versions import publish_version
from stages.actor_train.worker import Trainer
from stages.model.checkpoint import load_decoder

log = structlog.get_logger(__name__)


class History:
    def __init__(self, settings: TrainSettings, run_directory: Path) -> None:
        """Raises ModelError where neither a checkpoint nor the starting model can be used."""
        self.settings = settings
        self.checkpoints, self.versions = run_directory / "checkpoints", run_directory / "versions"
        _remove_leftovers(self.checkpoints, self.versions)
        resumed = load_latest(self.checkpoints, settings)
        if resumed is None:
            self.trainer = Trainer(load_decoder(settings.model_path, getattr(torch, settings.dtype), settings.device), settings)
            self.step = self.saved = self.lineage = 0
        else:
            self.trainer, state = resumed
            self.step = self.saved = state.step
            self.lineage = state.lineage
            log.info("resumed from a checkpoint", step=self.step, lineage=self.lineage)
        self._version: Version | None = None

    def advance(self, step: int, lineage: int) -> None:
        """Takes optimizer step `step` with the gradient at hand, in the plan's lineage or a newer one."""
        self.trainer.apply(step)
        self.step, self._version = step, None
        self.lineage = max(self.lineage, lineage)

    def is_saved(self) -> bool:
        """Whether a checkpoint holds the weights as they are; of step 0 the starting model does."""
        return self.saved == self.step

    def is_due(self) -> bool:
        return self.step % self.settings.checkpoint_every == 0

    def save(self) -> None:
        """Returns once the checkpoint is durable."""
        save_checkpoint(self.trainer, self.checkpoints, self.step, self.lineage)
        self.saved = self.step

    def version(self) -> Version:
        """The record of the weights as they are; written to disk the first time."""
        if self._version is None:
            self._version = publish_version(self.trainer.decoder, self.versions, self.lineage, self.step, self.settings.model_path)
            self.lineage = self._version.lineage
        return self._version


def _remove_leftovers(*directories: Path) -> None:
    """What a killed trainer left half-written; there is one trainer a run, so nobody is still writing it."""
    for directory in directories:
        for pattern in (".*.partial", ".*.replaced"):
            for path in directory.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)
