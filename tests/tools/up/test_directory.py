"""The run directory: real files."""

import json
import time
from pathlib import Path

import pytest

from schemas.config import PipelineConfig
from schemas.errors import ConfigError
from schemas.lock import LOCK_FILE
from tests.schemas.config.builders import a_config
from tools.up.directory import forget_the_end, held, name_for, new_run_directory, run_directory_to_resume, why_it_failed, with_name


def a_run(folder: Path, *overrides: str) -> PipelineConfig:
    return a_config(folder, f"run.directory={folder / 'runs'}", *overrides)


def test_a_run_without_a_name_is_called_after_its_pipeline_and_the_time() -> None:
    assert name_for("calculator", time.struct_time((2026, 3, 1, 9, 5, 7, 0, 0, 0))) == "calculator-20260301-090507"


def test_two_runs_of_one_second_get_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.up.directory.name_for", lambda pipeline, moment: f"{pipeline}-now")
    first, second = with_name(a_run(tmp_path)), None
    new_run_directory(first)
    second = with_name(a_run(tmp_path))
    assert (first.run.name, second.run.name) == ("small-now", "small-now-2")


def test_a_run_directory_is_complete_from_the_start(tmp_path: Path) -> None:
    config = a_run(tmp_path, "run.name=first")
    path = new_run_directory(config)
    assert PipelineConfig.model_validate(json.loads((path / "config.json").read_text())) == config
    assert (path / "schema.lock").read_bytes() == LOCK_FILE.read_bytes()
    assert (path / "logs").is_dir()


def test_a_run_directory_is_never_reused(tmp_path: Path) -> None:
    config = a_run(tmp_path, "run.name=first")
    new_run_directory(config)
    with pytest.raises(ConfigError, match="exists already.*another --name, or --resume"):
        new_run_directory(config)


def test_a_run_that_was_cut_off_is_resumed_where_it_lies(tmp_path: Path) -> None:
    config = a_run(tmp_path, "run.name=first")
    path = new_run_directory(config)
    assert run_directory_to_resume(config) == path


def test_a_stopped_run_is_resumed_and_its_summary_taken_away(tmp_path: Path) -> None:
    config = a_run(tmp_path, "run.name=first")
    (new_run_directory(config) / "summary.json").write_text('{"ended": "stopped"}')
    path = run_directory_to_resume(config)
    forget_the_end(path)
    assert not (path / "summary.json").exists()


def test_a_failed_run_is_resumed_once_its_cause_is_mended(tmp_path: Path) -> None:
    config = a_run(tmp_path, "run.name=first")
    path = new_run_directory(config)
    (path / "summary.json").write_text(json.dumps({"ended": "failed"}))
    (path / "failure.json").write_text("{}")
    forget_the_end(run_directory_to_resume(config))
    assert not (path / "summary.json").exists()
    assert not (path / "failure.json").exists()


def test_a_run_that_has_ended_is_not_resumed(tmp_path: Path) -> None:
    config = a_run(tmp_path, "run.name=first")
    (new_run_directory(config) / "summary.json").write_text(json.dumps({"ended": "done"}))
    with pytest.raises(ConfigError, match="has ended"):
        run_directory_to_resume(config)


def test_a_run_keeps_its_configuration(tmp_path: Path) -> None:
    new_run_directory(a_run(tmp_path, "run.name=first"))
    with pytest.raises(ConfigError, match="schedule.steps is 7 now, but 24"):
        run_directory_to_resume(a_run(tmp_path, "run.name=first", "schedule.steps=7"))


def test_a_difference_is_told_in_the_words_of_the_file(tmp_path: Path) -> None:
    new_run_directory(a_run(tmp_path, "run.name=first"))
    with pytest.raises(ConfigError, match='schedule.kind is "sync" now, but "async" in'):
        run_directory_to_resume(a_run(tmp_path, "run.name=first", "schedule.kind=sync"))
    with pytest.raises(ConfigError, match="schedule.drop_uniform is false now, but true in"):
        run_directory_to_resume(a_run(tmp_path, "run.name=first", "schedule.drop_uniform=false"))


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
@pytest.mark.parametrize("text", ["[]", "{", "", "7", "null", '"run"', "\udcff", "[" * 100_000])
def test_a_damaged_file_of_the_run_is_named_and_not_shown(tmp_path: Path, name: str, text: str) -> None:
    config = a_run(tmp_path, "run.name=first")
    file = new_run_directory(config) / name
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=f"^{file} is damaged: .{{1,200}}$"):
        run_directory_to_resume(config)


@pytest.mark.parametrize("text", ["{}", '{"run": []}', '{"run": {}, "broker": 7}'])
def test_a_configuration_without_its_sections_is_damaged_not_different(tmp_path: Path, text: str) -> None:
    config = a_run(tmp_path, "run.name=first")
    file = new_run_directory(config) / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"^{file} is damaged: it has no section [a-z]+; put it back from a copy"):
        run_directory_to_resume(config)


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"stage": 7, "reason": "x"}'])
def test_a_damaged_word_of_a_failure_still_is_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "failure.json").write_text(text)
    assert why_it_failed(tmp_path).reason == f"{tmp_path / 'failure.json'} says why, and is damaged"


def test_a_run_without_its_lock_is_of_another_version(tmp_path: Path) -> None:
    config = a_run(tmp_path, "run.name=first")
    (new_run_directory(config) / "schema.lock").unlink()
    with pytest.raises(ConfigError, match="another version"):
        run_directory_to_resume(config)


@pytest.mark.parametrize("now", ["true", "false"])
def test_whether_a_loss_is_accepted_is_said_anew_at_each_start(tmp_path: Path, now: str) -> None:
    before = "false" if now == "true" else "true"
    path = new_run_directory(a_run(tmp_path, "run.name=first", f"broker.accept_loss={before}"))
    assert run_directory_to_resume(a_run(tmp_path, "run.name=first", f"broker.accept_loss={now}")) == path


@pytest.mark.parametrize(("name", "words"), [("", "which run"), ("nowhere", "holds no run")])
def test_there_must_be_a_run_to_resume(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_directory_to_resume(a_run(tmp_path, f"run.name={name}" if name else "run.seed=1"))


def test_a_run_is_run_by_one_command_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(ConfigError, match="another `tidemill up`"), held(tmp_path):
        raise AssertionError("both hold it")
    with held(tmp_path):
        pass
