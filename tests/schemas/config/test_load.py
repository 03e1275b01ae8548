"""Reading a pipeline file: what is wrong is said in one clear line for each key, and nothing wrong is let through."""

import os
from pathlib import Path

import pytest

from schemas.config import PipelineConfig, load_config, to_toml
from schemas.config.broker import is_routable
from schemas.errors import ConfigError
from tests.schemas.config.builders import SMALL, a_config, a_file, a_model

PIPELINES = Path(__file__).resolve().parents[3] / "compose" / "pipelines"


def complaint(file: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    return str(caught.value)


def test_defaults_fill_what_a_file_leaves_out(tmp_path: Path) -> None:
    config = load_config(a_file(tmp_path))
    assert (config.schedule.kind, config.schedule.max_lag, config.schedule.members) == ("async", 2, 8)


def test_the_welcome_brings_the_same_configuration_to_a_stage(tmp_path: Path) -> None:
    config = a_config(tmp_path, "stages.env.options.latency=none")
    assert PipelineConfig.model_validate(config.model_dump(mode="json")) == config


def test_the_resolved_copy_reads_back_as_the_same_configuration(tmp_path: Path) -> None:
    config = a_config(tmp_path, 'stages.env.options={ "odd key" = "a\\"b", deep = { list = [1, 2.5, true] } }')
    copy = tmp_path / "copy.toml"
    copy.write_text(to_toml(config))
    assert load_config(copy) == config


def test_a_configuration_cannot_be_changed_after_it_was_read(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    with pytest.raises(ValueError, match="frozen"):
        config.schedule.members = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("[stages.rollout]\nmax_runing = 1", "stages.rollout.max_runing: unknown key; did you mean max_running?"),
        ("[shedule]\nmembers = 1", "shedule: unknown key; did you mean schedule?"),
        ("[host]\nmembers = 1", "host.members: unknown key; did you mean schedule.members?"),
        ("[schedule]\nupdate = 'u_step'", "schedule.update: unknown key; known here: kind, max_lag"),
        ("[rollout]\nreplicas = 2", "rollout: unknown key; did you mean stages.rollout?"),
        ("[run]\nmax_runing = 2", "run.max_runing: unknown key; did you mean stages.rollout.max_running?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_name(tmp_path: Path, extra: str, expected: str) -> None:
    file = a_file(tmp_path, extra)
    assert complaint(file).startswith(f"{file}: {expected}")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("schedule.members=eight", 'schedule.members = "eight": expected a whole number'),
        ("schedule.members=8.0", "schedule.members = 8.0: expected a whole number"),
        ("schedule.members=true", "schedule.members = true: expected a whole number"),
        ("schedule.members=0", "schedule.members = 0: expected at least 1"),
        ("schedule.drop_uniform=1", "schedule.drop_uniform = 1: expected true or false"),
        ("algorithm.learning_rate='fast'", 'algorithm.learning_rate = "fast": expected a number'),
        ("algorithm.learning_rate=inf", "algorithm.learning_rate = Infinity: expected a finite number"),
        ("algorithm.betas=[0.9]", "algorithm.betas[1] is missing"),
        ("schedule.kind=asink", "schedule.kind = \"asink\": expected 'async' or 'sync'"),
        ("schedule=sync", 'schedule = "sync": expected a table'),
        ("broker.lease_s.turn=1", "broker.lease_s = {\"turn\": 1}: unknown queue 'turn'; did you mean turns?"),
        ("broker.lease_s.turns=0", "broker.lease_s.turns = 0: expected more than 0"),
        ("stages.env.options.slow_s=nan", 'stages.env.options = {"slow_s": NaN}: expected finite numbers'),
        ("stages.env.options.delays=[1, inf]", 'stages.env.options = {"delays": [1, Infinity]}: expected finite numbers'),
        ("stages.reward.weights.right=much", 'stages.reward.weights.right = "much": expected a number'),
        ("host.slots=many", "host.slots = \"many\": expected 'auto' or a whole number"),
        ("stages.env.path=code", 'stages.env.path = "code": expected a list'),
        ("stages.env.path=[3]", "stages.env.path[0] = 3: expected a string"),
        ("stages.env.environment=calculator", 'stages.env.environment = "calculator": expected module:name'),
        ("stages.rollout.device=gpu", 'stages.rollout.device = "gpu": expected "cpu", "cuda"'),
        ("run.name=a/b", 'run.name = "a/b": expected at most 64 letters'),
        ("pipeline.name=''", 'pipeline.name = "": expected 1 to 64 letters'),
        ("model.path=''", 'model.path = "": expected a string that is not empty'),
    ],
)
def test_a_wrong_value_is_told_what_was_expected_and_where(tmp_path: Path, override: str, expected: str) -> None:
    assert complaint(a_file(tmp_path), override).startswith(f"--set: {expected}")


def test_every_wrong_key_gets_its_own_line_with_its_source(tmp_path: Path) -> None:
    file = a_file(tmp_path, "[schedule]\nmembers = 'x'\nstepps = 3")
    lines = complaint(file, "schedule.max_lag=-1").splitlines()
    assert [line.split(":")[0] for line in lines] == ["--set", str(file), str(file)]


def test_a_missing_key_is_named_with_what_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(SMALL.replace('environment = "my_module:MyEnvironment"', "").replace('[pipeline]\nname = "small"', ""))
    lines = complaint(file).splitlines()
    assert lines[0].startswith(f"{file}: pipeline is missing: ")
    assert lines[1].startswith(f"{file}: stages.env.environment is missing: `module:Class`")


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("schedule.kind=pipelined", "schedule.kind", "pipelined"),
        ("schedule.stale=drop", "schedule.stale", "drop"),
        ("schedule.stale=wait", "schedule.stale", "wait"),
        ("schedule.kv=recompute", "schedule.kv", "recompute"),
        ("schedule.kv=drain", "schedule.kv", "drain"),
        ("stages.rollout.engine=sglang", "stages.rollout.engine", "sglang"),
        ("stages.actor_train.backend=deepspeed", "stages.actor_train.backend", "deepspeed"),
    ],
)
def test_a_value_that_is_not_built_is_refused_by_name(tmp_path: Path, override: str, key: str, value: str) -> None:
    assert complaint(a_file(tmp_path), override).startswith(f"--set: {key} = '{value}' is not built yet; use '")


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_an_architecture_that_is_not_built_is_refused_by_name(tmp_path: Path, model_type: str) -> None:
    file = a_file(tmp_path)
    a_model(tmp_path / "model", model_type)
    assert f"model_type = '{model_type}' is not built yet" in complaint(file)


@pytest.mark.parametrize("address", ["10.0.0.7", "0.0.0.0", "*", "example.org"])
def test_a_routable_address_is_known_as_one(tmp_path: Path, address: str) -> None:
    endpoint = f"tcp://{address}:5555"
    assert load_config(a_file(tmp_path), [f"broker.endpoint={endpoint}"]).broker.endpoint == endpoint
    assert is_routable(endpoint)


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:5555", "tcp://127.3.2.1:5555", "tcp://localhost:*", "tcp://[::1]:5555", "ipc:///tmp/s"]
)
def test_a_loopback_address_is_not_routable(endpoint: str) -> None:
    assert not is_routable(endpoint)


@pytest.mark.parametrize("endpoint", ["ipc://@anyone", "tcp://;127.0.0.1:5555", "tcp://:5555"])
def test_an_endpoint_that_hides_who_can_reach_it_is_refused(tmp_path: Path, endpoint: str) -> None:
    assert complaint(a_file(tmp_path), f"broker.endpoint={endpoint}").startswith("--set: broker.endpoint = ")


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://127.0.0.1:70000", "http://x", "ipc://"])
def test_a_malformed_endpoint_is_refused(tmp_path: Path, endpoint: str) -> None:
    assert complaint(a_file(tmp_path), f"broker.endpoint={endpoint}").startswith("--set: broker.endpoint = ")


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:5555", "tcp://localhost:5555", "tcp://[::1]:5555", "ipc:///tmp/x"])
def test_a_local_endpoint_is_accepted(tmp_path: Path, endpoint: str) -> None:
    assert a_config(tmp_path, f"broker.endpoint={endpoint}").broker.endpoint == endpoint


def test_a_path_that_a_unix_socket_cannot_hold_is_refused(tmp_path: Path) -> None:
    assert "1 to 107 bytes, this one has 200" in complaint(a_file(tmp_path), f"broker.endpoint=ipc://{'x' * 200}")


def test_a_missing_model_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    said = complaint(a_file(tmp_path), "model.path=nowhere")
    assert said.startswith("model.path = 'nowhere': no such folder; tried ")
    assert f"{tmp_path}/here/nowhere, {tmp_path}/nowhere, " in said


def test_the_current_folder_comes_before_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nearer = a_model(tmp_path / "here" / "model")
    monkeypatch.chdir(tmp_path / "here")
    assert load_config(a_file(tmp_path)).model.path == str(nearer)


def test_folders_come_back_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path)
    config = a_config(tmp_path, 'stages.env.path=["code"]', "run.directory=traces")
    assert config.stages.env.path == (str(tmp_path / "code"),)
    assert config.run.directory == str(tmp_path / "traces")
    assert config.model.path == str(tmp_path / "model")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    assert complaint(file).startswith(f"model.path: {tmp_path / 'model'}: no *.safetensors in it")
    (tmp_path / "model" / "config.json").write_text("{")
    assert "config.json: cannot be read" in complaint(file)
    (tmp_path / "model" / "config.json").unlink()
    assert complaint(file).startswith(f"model.path: {tmp_path / 'model'}: no config.json in it")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "absent.toml").startswith(f"{tmp_path}/absent.toml: no such file")
    assert complaint(tmp_path) == f"{tmp_path}: is a folder, not a file; pipelines stand under compose/pipelines/"
    broken = tmp_path / "broken.toml"
    broken.write_text("[schedule\n")
    assert complaint(broken).startswith(f"{broken}: is not TOML: ")
    broken.write_bytes(b"\xff\xfe")
    assert complaint(broken) == f"{broken}: is not text in UTF-8"


@pytest.mark.parametrize("file", sorted(PIPELINES.glob("*.toml")), ids=lambda file: file.stem)
def test_shipped_pipelines_hold_only_known_keys(file: Path, tmp_path: Path) -> None:
    config = load_config(file, [f"model.path={a_model(tmp_path / 'model')}"])
    assert config.pipeline.name == file.stem


def test_what_is_too_deep_too_large_or_no_file_is_a_plain_complaint(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    assert "at most" in complaint(file, f"schedule.steps={2**64}")
    assert "64 bits" in complaint(file, f"stages.env.options.deep=[{{ seed = {2**64} }}]")
    deep = tmp_path / "deep.toml"
    deep.write_text("x = " + "[" * 5000 + "]" * 5000)
    assert "nested too deeply" in complaint(deep)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no regular file" in complaint(pipe)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_config(file).pipeline.name == "small"


def test_a_list_that_is_too_short_says_what_it_is_for(tmp_path: Path) -> None:
    said = complaint(a_file(tmp_path), "algorithm.betas=[0.9]")
    assert said == "--set: algorithm.betas[1] is missing: Decay of AdamW's running mean and running square."


def test_a_pipeline_that_ships_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("compose/pipelines/guess.toml").pipeline.name == "guess"
    with pytest.raises(ConfigError, match="no such file"):
        load_config("compose/pipelines/nothing.toml")
