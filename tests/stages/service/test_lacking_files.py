"""A process that was started before anybody serves what it lacks waits for it, and says so; under a host it fails, and is started again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.errors import NotServedError
from schemas.messages import Hello, Source
from stages.blobs.cache import DIRECTORY_VARIABLE
from stages.service.lacking import ASK_AGAIN_S, Lacking
from tests.skeleton.broker_process import HOUSE
from tests.skeleton.scripted_broker import ScriptedBroker, a_scripted_broker
from tests.skeleton.waiting import until
from tests.stages.blobs.builders import serving
from tests.stages.blobs.test_run import ELSEWHERE, OtherMachine
from tests.stages.env.builders import a_model_directory, a_welcome

NOBODY = NotServedError("nobody serves the model")


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with a_scripted_broker() as made:
        yield made


class Stage:
    """An env process by hand, whose model is on another machine."""

    def __init__(self, broker: ScriptedBroker, folder: Path, *more: str) -> None:
        self._broker, self.log_file = broker, folder / "log"
        command = [sys.executable, "-m", "stages.env", "--broker", broker.endpoint, "--name", "env-a", *more]
        environment = os.environ | {DIRECTORY_VARIABLE: str(folder / "cache")}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=HOUSE, env=environment, stdout=log, stderr=log)

    def answer(self, *sources: Source) -> Hello:
        """Its next hello is answered with who serves."""
        hello = self._broker.next(Hello)
        welcome = a_welcome(Path(ELSEWHERE), broker={"dead_s": 10.0}, stages__env={"options": {}})
        self._broker.say(replace(welcome, sources=sources, hello=hello.number))
        return hello

    def log(self) -> str:
        return self.log_file.read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def test_it_waits_says_so_and_begins_once_somebody_serves(broker: ScriptedBroker, tmp_path: Path) -> None:
    model = a_model_directory(tmp_path / "model", eos_token_id=0)
    stage = Stage(broker, tmp_path)
    try:
        stage.answer()
        assert not stage.answer().ready, stage.log()
        with serving(model, shelf=OtherMachine(model)) as (_, source):
            stage.answer(source)
            assert stage.answer(source).ready, stage.log()
        assert stage.log().count("files_not_here_yet") == 1
        assert f"model.path {ELSEWHERE} is not there on this machine" in stage.log()
        assert any("on files: model.path" in beat.waiting for beat in broker.heartbeats)
    finally:
        stage.close()


def test_its_patience_ends_with_1_and_the_reason(broker: ScriptedBroker, tmp_path: Path) -> None:
    stage = Stage(broker, tmp_path, "--patience", "1")
    try:
        stage.answer()
        stage.answer()
        until(lambda: stage.process.poll() is not None, "it gives up", stage.log)
        assert stage.process.returncode == 1
        assert f"waited for 1 s: model.path {ELSEWHERE} is not there on this machine" in stage.log()
    finally:
        stage.close()


def test_under_a_host_it_fails_at_once(broker: ScriptedBroker, tmp_path: Path) -> None:
    stage = Stage(broker, tmp_path, "--host", "host-a")
    try:
        stage.answer()
        until(lambda: stage.process.poll() is not None, "it ends", stage.log)
        assert stage.process.returncode == 1
        assert "files_not_here_yet" not in stage.log()
    finally:
        stage.close()


def test_the_broker_is_asked_once_for_each_answer() -> None:
    lacking = Lacking()
    assert lacking.refused(NOBODY, 10.0)
    assert not lacking.asks(10.0 + ASK_AGAIN_S / 2)
    assert lacking.asks(10.0 + ASK_AGAIN_S)
    assert not lacking.asks(100.0)
    assert not lacking.refused(NOBODY, 100.0), "it was said before"
    assert lacking.refused(NotServedError("gpu-1: no answer"), 110.0)


def test_without_a_limit_it_waits_for_ever_and_what_has_come_is_forgotten() -> None:
    lacking = Lacking()
    lacking.refused(NOBODY, 0.0)
    lacking.refused(NOBODY, 1e9)
    lacking.come()
    assert (lacking.waiting, lacking.asks(2e9)) == ("", False)
    bounded = Lacking(5.0)
    bounded.refused(NOBODY, 0.0)
    bounded.come()
    bounded.refused(NOBODY, 100.0)
    with pytest.raises(NotServedError, match="waited for 5 s: nobody serves"):
        bounded.refused(NOBODY, 105.0)
