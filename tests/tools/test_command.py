"""The command line as a user meets it: whole processes, exit codes, one clear line."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.config import load_config
from schemas.errors import ConfigError
from tests.schemas.config.builders import a_file
from tools.up.user_code import check_what_is_named

HOUSE = Path(__file__).resolve().parents[2]
(SHIPPED,) = (HOUSE / "compose" / "models").iterdir()
COMMANDS = ("up", "serve", "stop", "check", "broker", "env", "rollout", "reward", "reference", "actor-train", "weight-sync", "host")


def tidemill(*arguments: str, cwd: Path = HOUSE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(HOUSE), "TERM": "dumb", "COLUMNS": "120"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60)


def assert_refused(result: subprocess.CompletedProcess[str], *words: str, runs: Path) -> None:
    """Exit code 2, one line that says it all, and nothing started."""
    (line,) = result.stderr.splitlines()
    assert line.startswith("tidemill: ")
    for word in words:
        assert word in line
    assert result.returncode == 2
    assert not runs.exists()


def a_file_that_runs(folder: Path, module: str = "", environment: str = "stages.env.calculator:Calculator") -> Path:
    """A pipeline over the shipped model; `module` becomes `my_module.py` in a folder of its own that is on `path`."""
    (folder / "code").mkdir()
    (folder / "code" / "my_module.py").write_text(module)
    file = folder / "pipeline.toml"
    file.write_text(
        f'[pipeline]\nname = "small"\n[model]\npath = "{SHIPPED}"\n'
        f'[stages.env]\nenvironment = "{environment}"\npath = ["code"]\n'
        '[stages.reward]\nverifier = "stages.reward.exact_match:exact_match"\n'
    )
    return file


def test_help_lists_what_works() -> None:
    result = tidemill("--help")
    assert result.returncode == 0
    for command in COMMANDS:
        assert command in result.stdout


def test_the_command_line_loads_nothing_heavy() -> None:
    probe = "import sys, tools.command; print(*[n for n in ('torch', 'transformers', 'zmq', 'numpy') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", probe], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


@pytest.mark.parametrize("command", ["up", "check"])
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("schedule.kindd=sync", ("schedule.kindd", "unknown key", "kind")),
        ("schedule.steps=many", ("schedule.steps",)),
        ("schedule.kind=pipelined", ("schedule.kind", "not built yet")),
        ("model.path=/nowhere/model", ("model.path", "/nowhere/model")),
    ],
)
def test_a_wrong_key_type_value_or_path_is_one_line_and_starts_nothing(
    command: str, override: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    result = tidemill(command, str(a_file(tmp_path)), "--set", override, cwd=tmp_path)
    assert_refused(result, *words, runs=tmp_path / "runs")


@pytest.mark.parametrize("command", ["up", "check"])
def test_a_missing_file_is_one_line(command: str, tmp_path: Path) -> None:
    assert_refused(tidemill(command, "nowhere.toml", cwd=tmp_path), "nowhere.toml", runs=tmp_path / "runs")


def test_a_predicted_deadlock_starts_nothing(tmp_path: Path) -> None:
    result = tidemill("up", str(a_file(tmp_path)), "--set", "broker.budget_bytes=1", cwd=tmp_path)
    assert_refused(result, "broker.budget_bytes", "set at least", runs=tmp_path / "runs")


def test_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        override = f"broker.endpoint={endpoint}"
        result = tidemill("up", str(a_file(tmp_path)), "--set", override, cwd=tmp_path)
    assert_refused(result, endpoint, "choose another port", runs=tmp_path / "runs")


def test_a_port_for_metrics_that_is_in_use_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = tidemill("up", str(a_file(tmp_path)), "--set", f"broker.metrics_port={port}", cwd=tmp_path)
    assert_refused(result, f"broker.metrics_port = {port}", "choose another port", runs=tmp_path / "runs")


def test_a_name_that_is_taken_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    result = tidemill("up", str(a_file_that_runs(tmp_path)), "--name", "mine", cwd=tmp_path)
    assert result.returncode == 2
    assert "another --name" in result.stderr
    assert list((tmp_path / "runs" / "mine").iterdir()) == []


@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_name(name: str, more: tuple[str, ...], tmp_path: Path) -> None:
    result = tidemill("up", str(a_file_that_runs(tmp_path)), "--name", name, *more, cwd=tmp_path)
    assert_refused(result, "--name: the name is empty", runs=tmp_path / "runs")


def test_check_shows_a_screen_and_with_all_what_each_process_will_see(tmp_path: Path) -> None:
    file = str(a_file_that_runs(tmp_path))
    short, whole = (tidemill("check", file, "--set", "host.slots=2", *more, cwd=tmp_path) for more in ((), ("--all",)))
    assert (short.returncode, whole.returncode) == (0, 0), short.stderr + whole.stderr
    assert " 1 rollout " in short.stdout
    assert "host.slots = 2" in short.stdout
    assert "nothing to object to" in short.stdout
    assert len(short.stdout.splitlines()) < 40
    assert "── rollout: 1 process" in whole.stdout


def test_check_does_not_praise_what_it_then_refuses(tmp_path: Path) -> None:
    file = a_file_that_runs(tmp_path, "raise ValueError('not today')", "my_module:Mine")
    result = tidemill("check", str(file), cwd=tmp_path)
    assert result.returncode == 2
    assert "not today" in result.stderr
    assert "nothing to object to" not in result.stdout


def test_check_ends_with_2_where_the_run_could_not_go_on(tmp_path: Path) -> None:
    result = tidemill("check", str(a_file(tmp_path)), "--set", "schedule.members=1", cwd=tmp_path)
    assert result.returncode == 2
    assert "error: schedule.members" in result.stdout


ENVIRONMENT = """
class Mine:
    @staticmethod
    def task(index, purpose, seed): return {}
    async def reset(self, task): ...
    def step(self, text): ...
"""


@pytest.mark.parametrize("command", ["up", "check"])
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("", "the module my_module has no Mine"),
        ("import sys; sys.exit(3)", "sys.exit(3)"),
        ("import os; os._exit(0)", "ends with code 0"),
        ("{}['port']", "KeyError: 'port'"),
        ("import nowhere_to_be_found", "its own import of 'nowhere_to_be_found' fails"),
        (ENVIRONMENT, "must be async"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_line_and_starts_nothing(command: str, module: str, words: str, tmp_path: Path) -> None:
    result = tidemill(command, str(a_file_that_runs(tmp_path, module, "my_module:Mine")), cwd=tmp_path)
    assert_refused(result, "stages.env.environment", words, runs=tmp_path / "runs")


TASKS = """
class Mine:
    @staticmethod
    def task(index, purpose, seed): TASK
    async def reset(self, task): ...
    async def step(self, text): ...
"""


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("return {'hint': object()}", ("task(0, 'train', 7)", "the task holds what JSON cannot")),
        ("return {('a', 'b'): 1}", ("the task holds what JSON cannot",)),
        ("return {'n': 1 << 80}", ("the task holds what JSON cannot",)),
        ("return [1]", ("the task is of type list, not a dict",)),
        ("return {'hint': object()} if purpose == 'eval' else {}", ("task(0, 'eval', 7)", "the task holds what JSON cannot")),
        ("return {'x': [][index]}", ("fails when it draws a task: IndexError",)),
        ("return {'x': {'train': 1}[purpose]}", ("task(0, 'eval', 7)", "task raised KeyError: 'eval'")),
        ("return {'x': 1 // (seed - 7)}", ("task(0, 'train', 7)", "task raised ZeroDivisionError")),
    ],
)
def test_an_environment_whose_tasks_no_session_could_play_is_one_line(task: str, words: tuple[str, ...], tmp_path: Path) -> None:
    file = a_file_that_runs(tmp_path, TASKS.replace("TASK", task), "my_module:Mine")
    result = tidemill("check", str(file), "--set", "run.seed=7", cwd=tmp_path)
    assert_refused(result, "stages.env.environment: my_module:Mine", *words, runs=tmp_path / "runs")


@pytest.mark.parametrize("task", ["return {'x': float('nan')}", "return {'x': [1, {'y': None}]}"])
def test_a_task_that_the_stage_takes_is_not_objected_to(task: str, tmp_path: Path) -> None:
    check_what_is_named(load_config(a_file_that_runs(tmp_path, TASKS.replace("TASK", task), "my_module:Mine")))


def test_eval_tasks_are_not_asked_for_where_nothing_is_evaluated(tmp_path: Path) -> None:
    task = "return {'x': {'train': 1}[purpose]}"
    file = a_file_that_runs(tmp_path, TASKS.replace("TASK", task), "my_module:Mine")
    check_what_is_named(load_config(file, ["evaluation.at_start=false", "evaluation.at_end=false"]))


def test_a_task_that_takes_for_ever_is_given_up_and_said_to_be_what_takes_long(tmp_path: Path) -> None:
    task = "import threading; threading.Event().wait()"
    file = a_file_that_runs(tmp_path, TASKS.replace("TASK", task), "my_module:Mine")
    with pytest.raises(ConfigError, match=r"my_module:Mine.*still not loaded after 0.5 s: .*draw a train and an eval task"):
        check_what_is_named(load_config(file), patience_s=0.5)


def test_a_weight_of_a_part_that_the_verifier_does_not_give_is_one_line(tmp_path: Path) -> None:
    result = tidemill("check", str(a_file_that_runs(tmp_path)), "--set", "stages.reward.weights.right=1.0", cwd=tmp_path)
    assert_refused(result, "tidemill: stages.reward.weights.right: ", "it gives: reward", runs=tmp_path / "runs")


def test_a_process_for_the_trial_that_cannot_be_started_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(a_file_that_runs(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigError, match="stages.env.environment = .*cannot be started: No such file or directory: /nowhere/python"):
        check_what_is_named(config)


def test_an_import_that_blocks_is_given_up(tmp_path: Path) -> None:
    file = a_file_that_runs(tmp_path, "import threading; threading.Event().wait()", "my_module:Mine")
    with pytest.raises(ConfigError, match=r"my_module:Mine.*still not loaded"):
        check_what_is_named(load_config(file), patience_s=0.5)


def test_a_verifier_that_is_not_there_is_told_how_to_be_found(tmp_path: Path) -> None:
    file = a_file_that_runs(tmp_path)
    result = tidemill("check", str(file), "--set", "stages.reward.verifier=my_module:mine", cwd=tmp_path)
    assert_refused(result, "stages.reward.verifier", "`path` of [stages.reward]", runs=tmp_path / "runs")


def test_a_model_without_a_tokenizer_or_with_damaged_tensors_starts_nothing(tmp_path: Path) -> None:
    file = a_file_that_runs(tmp_path)
    model = tmp_path / "model"
    shutil.copytree(SHIPPED, model)
    (model / "tokenizer.json").unlink()
    refused = tidemill("check", str(file), "--set", f"model.path={model}")
    assert_refused(refused, "tidemill: model.path: ", "tokenizer.json", runs=tmp_path / "runs")
    assert "stages.env" not in refused.stderr
    (model / "model.safetensors").write_bytes(b"\xff" * 100)
    refused = tidemill("up", str(file), "--set", f"model.path={model}")
    assert_refused(refused, "tidemill: model.path: ", "cut short", runs=tmp_path / "runs")


def test_a_package_of_ours_that_another_one_shadows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{HOUSE}"}
    command = [sys.executable, str(HOUSE / "tools" / "__main__.py"), "--help"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "package 'broker' would come from" in result.stderr
