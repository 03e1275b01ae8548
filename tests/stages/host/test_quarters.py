"""Where a host works: with the broker's run directory where that is on its machine, else in its own."""

import json
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from schemas.messages import Welcome
from stages.host.quarters import quarters_for

CONFIG = {"run": {"name": "one"}, "host": {}}


def a_welcome(run_directory: Path) -> Welcome:
    return Welcome(epoch=1, next_seq=1, config=CONFIG, run_directory=str(run_directory))


def a_run(path: Path, config: object = CONFIG) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_where_the_run_directory_is_the_host_works_in_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    quarters = quarters_for(a_welcome(run), "far", None)
    assert (quarters.directory, quarters.logs, quarters.own) == (run, run / "logs", "")


@pytest.mark.parametrize("there", ["nothing", "another run", "no json"])
def test_elsewhere_it_works_in_its_cache_by_the_runs_name(tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "run" if there == "nothing" else a_run(tmp_path / "run", {"run": {"name": "two"}})
    if there == "no json":
        (run / "config.json").write_text("{")
    quarters = quarters_for(a_welcome(run), "far", None)
    assert quarters.directory == tmp_path / "cache" / "tidemill" / "hosts" / "far" / "one"
    assert quarters.own == str(quarters.directory)
    assert quarters.logs.is_dir()


def test_a_directory_that_is_asked_for_is_used_even_beside_the_run_directory(tmp_path: Path) -> None:
    quarters = quarters_for(a_welcome(a_run(tmp_path / "run")), "far", tmp_path / "mine")
    assert quarters.own == str(tmp_path / "mine" / "one")


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--directory .*file/deep: cannot be used"):
        quarters_for(a_welcome(tmp_path / "run"), "far", tmp_path / "file" / "deep")
