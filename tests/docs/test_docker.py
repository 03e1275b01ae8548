"""docs/docker.md on a real engine: its commands in order, from the image's build to the last volume."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.docker.conftest import SDK
from tests.docker.conftest import build as build
from tests.docker.conftest import engine as engine
from tests.docker.engine import Engine
from tests.docs.pages import HOUSE, Command, blocks_of, commands, is_printed
from tests.docs.terminal import SHORT

PAGE = "docs/docker.md"
KIND = "docker"
LIMIT_S = 1200


@pytest.fixture
def environment(engine: Engine, build: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """What the person's shell has: the engine, a project and an image of this test's own, and short runs."""
    settings = " ".join(f"--set {setting}" for setting in SHORT)
    ours = {"COMPOSE_PROJECT_NAME": "tidemill-docs", "IMAGE": "tidemill:test", "ARGS": settings}
    named = {**engine.environment(), **build, **ours}
    yield named
    down = ["docker", "compose", "-f", "compose/docker-compose.yml", "down", "--volumes", "--timeout", "1"]
    subprocess.run(down, cwd=HOUSE, env=named, check=False, timeout=LIMIT_S)


@pytest.mark.docker
@pytest.mark.skipif(not SDK, reason="the Docker SDK is not installed; make test-docker installs it")
def test_the_page_does_what_it_says(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("page")
    written(place)
    typed = [command for block in blocks_of(PAGE) if block.kind == KIND for command in commands(block)]
    assert typed
    for command in typed:
        run(command, at(place, command.text), environment)


def written(place: Path) -> None:
    """The files of the page, for user 1000 to read."""
    for block in blocks_of(PAGE):
        if block.file:
            file = place / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text + "\n", encoding="utf-8")
    assert (place / "mine").is_dir()
    place.chmod(0o755)


def at(place: Path, text: str) -> str:
    """The command with the test's own folder where the page has a person's."""
    return text.replace("/tmp/tidemill-runs", f"{place}/runs").replace("$PWD/mine", f"{place}/mine").replace(" mine/", f" {place}/mine/")


def test_the_page_s_own_folders_are_the_test_s() -> None:
    assert at(Path("/t"), "WORK=$PWD/mine PIPELINE=/work/mine.toml up") == "WORK=/t/mine PIPELINE=/work/mine.toml up"
    assert at(Path("/t"), "-f a.yml -f mine/more.yml cp b:/c /tmp/tidemill-runs/all") == "-f a.yml -f /t/mine/more.yml cp b:/c /t/runs/all"


def run(command: Command, text: str, environment: dict[str, str]) -> None:
    """In the folder of the repository, as the page says."""
    path = f"{HOUSE / '.venv' / 'bin'}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text], cwd=HOUSE, env={**environment, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    told = f"{command.block.where}: {text}\n{done.stdout[-6000:]}"
    assert done.returncode == command.exit_code, told
    missing = is_printed(command.prints, done.stdout)
    assert not missing, f"the page says that it prints\n    {missing}\n{told}"
