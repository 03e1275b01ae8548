"""Checkpoints survive kills and damage."""

from pathlib import Path

import pytest
import structlog
import torch
from transformers import AutoModelForCausalLM

from stages.actor_train.checkpoint import OPTIMIZER, checkpoint_path, load_latest, save_checkpoint
from stages.actor_train.history import History
from stages.actor_train.settings import TrainSettings, train_settings
from stages.actor_train.versions import publish_version
from stages.actor_train.worker import Trainer
from stages.model.checkpoint import WEIGHTS, load_decoder
from stages.model.errors import CheckpointError
from tests.stages.training_builders import a_config, a_starting_model


def settings_of(path: Path, **algorithm: object) -> TrainSettings:
    model = path / "model"
    return train_settings(a_config(model if model.exists() else a_starting_model(model), algorithm=algorithm))


def a_trainer(settings: TrainSettings, steps: int = 0) -> Trainer:
    trainer = Trainer(load_decoder(settings.model_path), settings)
    train(trainer, range(1, steps + 1))
    return trainer


def train(trainer: Trainer, steps: range) -> None:
    """Steps on a loss that depends on the step's number alone."""
    for step in steps:
        tokens = torch.arange(1, 9)[None] * step % 24
        trainer.decoder(tokens).square().mean().backward()
        trainer.clip()
        trainer.apply(step)


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    theirs = other.decoder.state_dict()
    for name, tensor in one.decoder.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


def flip_a_byte(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 0xFF
    file.write_bytes(raw)


def test_a_resumed_trainer_goes_on_bit_for_bit(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, warmup_steps=5, weight_decay=0.1)
    uninterrupted = a_trainer(settings, steps=3)
    save_checkpoint(uninterrupted, tmp_path / "checkpoints", 3, 0)
    train(uninterrupted, range(4, 7))
    found = load_latest(tmp_path / "checkpoints", settings)
    assert found is not None
    resumed, state = found
    train(resumed, range(state.step + 1, 7))
    assert_same_weights(resumed, uninterrupted)


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "checkpoints", settings_of(tmp_path)) is None


@pytest.mark.parametrize("file", [WEIGHTS, OPTIMIZER, "training.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, file: str, damage: str) -> None:
    settings = settings_of(tmp_path)
    trainer = a_trainer(settings, steps=1)
    save_checkpoint(trainer, tmp_path / "checkpoints", 1, 0)
    before = a_trainer(settings, steps=1)
    train(trainer, range(2, 3))
    victim = save_checkpoint(trainer, tmp_path / "checkpoints", 2, 0) / file
    if damage == "flipped":
        flip_a_byte(victim)
    elif damage == "cut":
        victim.write_bytes(victim.read_bytes()[:20])
    else:
        victim.unlink()
    with structlog.testing.capture_logs() as lines:
        found = load_latest(tmp_path / "checkpoints", settings)
    assert found is not None
    assert found[1].step == 1
    assert_same_weights(found[0], before)
    assert [line["checkpoint"] for line in lines if "falling back" in line["event"]] == [str(victim.parent)]


def test_a_run_whose_every_checkpoint_is_damaged_is_not_silently_begun_anew(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    flip_a_byte(save_checkpoint(a_trainer(settings, 1), tmp_path / "checkpoints", 1, 0) / WEIGHTS)
    with pytest.raises(CheckpointError, match="delete the folder"):
        load_latest(tmp_path / "checkpoints", settings)


def test_what_a_killed_trainer_left_half_written_is_passed_over(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    save_checkpoint(a_trainer(settings, 1), tmp_path / "checkpoints", 1, 0)
    (tmp_path / "checkpoints" / ".step-00000002.partial").mkdir()
    (tmp_path / "checkpoints" / ".step-00000002.partial" / WEIGHTS).write_bytes(b"half")
    found = load_latest(tmp_path / "checkpoints", settings)
    assert found is not None
    assert found[1].step == 1
    save_checkpoint(a_trainer(settings, 2), tmp_path / "checkpoints", 2, 0)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-00000001", "step-00000002"]


def test_a_step_made_anew_replaces_its_damaged_checkpoint(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    flip_a_byte(save_checkpoint(a_trainer(settings, 1), tmp_path / "checkpoints", 1, 0) / WEIGHTS)
    save_checkpoint(a_trainer(settings, 1), tmp_path / "checkpoints", 1, 0)
    assert load_latest(tmp_path / "checkpoints", settings) is not None


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    trainer = a_trainer(settings)
    for step in range(1, 13):
        save_checkpoint(trainer, tmp_path / "checkpoints", step, 0)
    names = [path.name for path in sorted((tmp_path / "checkpoints").iterdir())]
    assert names == [checkpoint_path(tmp_path, step).name for step in (10, 11, 12)]


def test_a_checkpoint_under_other_settings_is_taken_with_a_line_in_the_log(tmp_path: Path) -> None:
    save_checkpoint(a_trainer(settings_of(tmp_path), 1), tmp_path / "checkpoints", 1, 0)
    with structlog.testing.capture_logs() as lines:
        assert load_latest(tmp_path / "checkpoints", settings_of(tmp_path, learning_rate=1e-3)) is not None
    assert any("other settings" in line["event"] for line in lines)


def test_transformers_loads_a_checkpoint(tmp_path: Path) -> None:
    trainer = a_trainer(settings_of(tmp_path), steps=2)
    path = save_checkpoint(trainer, tmp_path / "checkpoints", 2, 0)
    theirs = AutoModelForCausalLM.from_pretrained(path).eval()
    tokens = torch.arange(1, 12)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, trainer.decoder(tokens), rtol=0.0, atol=1e-4)


def test_publishing_the_same_weights_again_gives_the_same_record(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    decoder = a_trainer(settings, steps=1).decoder
    first = publish_version(decoder, tmp_path / "versions", 0, 1, settings.model_path)
    again = publish_version(decoder, tmp_path / "versions", 0, 1, settings.model_path)
    assert again == first
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["0-1"]


def test_other_weights_under_a_taken_number_begin_a_new_lineage(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    trainer = a_trainer(settings, steps=1)
    first = publish_version(trainer.decoder, tmp_path / "versions", 0, 1, settings.model_path)
    train(trainer, range(2, 3))
    other = publish_version(trainer.decoder, tmp_path / "versions", 0, 1, settings.model_path)
    assert (other.lineage, other.number) == (1, 1)
    assert other.digest != first.digest
    again = publish_version(trainer.decoder, tmp_path / "versions", 0, 1, settings.model_path)
    assert again == other


def test_a_new_trainer_clears_away_what_a_killed_one_left_half_written(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    for leftover in ("checkpoints/.step-00000002.partial", "versions/.0-2.4711.partial"):
        (tmp_path / leftover).mkdir(parents=True)
    (tmp_path / "versions" / ".0-1.deleted").mkdir()
    History(settings, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == []
    assert [path.name for path in (tmp_path / "versions").iterdir()] == [".0-1.deleted"]
