"""`tidemill serve` and `tidemill stop` as whole processes; the stages come by themselves, as the skeleton's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.config import load_config
from schemas.edges import STAGES, Role
from tests.skeleton.broker_process import HOUSE
from tests.skeleton.config import PIPELINE
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until
from tests.tools.observe.stalls import FailingReward
from tools.up.directory import new_run_directory

NAMES = {
    "tests.nowhere:Environment": "stages.env.calculator:Calculator",
    "tests.nowhere:verifier": "stages.reward.exact_match:exact_match",
    'path = "model"': f'path = "{HOUSE}/compose/models/calculator"',
}
"""What the skeleton's pipeline names, and what `serve` can load before it starts anything."""


class Bench:
    """A folder with a pipeline, a place to listen, and the commands; ends what it started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._private = folder, tempfile.mkdtemp(prefix="serve-", dir="/tmp")
        self.endpoint = f"ipc://{self._private}/broker"
        text = PIPELINE
        for old, new in NAMES.items():
            text = text.replace(old, new)
        (folder / "pipeline.toml").write_text(text)
        self._started: list[subprocess.Popen[str]] = []

    def serve(self, *more: str) -> subprocess.Popen[str]:
        """The command, begun; its words go to `said`."""
        with (self.folder / "output").open("w") as output:
            process = subprocess.Popen(
                self._command("serve", "pipeline.toml", "--endpoint", self.endpoint, *more), cwd=self.folder, env=_environment(),
                stdout=output, stderr=output, text=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def tidemill(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self._command(*arguments)
        return subprocess.run(command, cwd=self.folder, env=_environment(), capture_output=True, text=True, check=False, timeout=120)

    def end_of(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and all that was said."""
        until(lambda: process.poll() is not None, "the command ends", self.said)
        return int(process.returncode), self.said()

    def said(self) -> str:
        return (self.folder / "output").read_text()

    def wait_until(self, words: str) -> None:
        until(lambda: words in self.said(), f"the command says {words!r}", self.said)

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").iterdir())

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        shutil.rmtree(self._private, ignore_errors=True)

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tools", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HOUSE), "TERM": "dumb", "COLUMNS": "120"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


LONG = ("--set", "schedule.steps=60")
"""A run that is still there when a signal has arrived, on a quick machine too."""


def read_summary(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "summary.json").read_text())
    return found


def pid_of_broker(run: Path) -> int:
    return int((run / "broker.pid").read_text())


def test_stages_that_come_by_themselves_make_a_whole_run(bench: Bench) -> None:
    serving = bench.serve("--name", "first")
    with a_crew(bench.endpoint) as crew:
        crew.wait_until_home()
        code, said = bench.end_of(serving)
    assert code == 0, said
    assert re.search(r"accuracy +\S+ before, \S+ after on 3 held-out problems", said)
    (run,) = bench.runs
    summary = read_summary(run)
    assert (summary["ended"], summary["steps"]) == ("done", 3)
    assert summary["ledger"]["closed"]  # type: ignore[index]


def test_a_run_that_is_over_is_not_served_again(bench: Bench) -> None:
    run = bench.folder / "runs" / "first"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "summary.json").write_text(json.dumps({"ended": "done", "steps": 3}))
    ended = bench.tidemill("serve", "pipeline.toml", "--endpoint", bench.endpoint, "--name", "first")
    assert ended.returncode == 0, ended.stderr
    assert "run first is over (done)" in ended.stdout


def test_sigterm_leaves_the_run_and_the_same_command_goes_on_with_it(bench: Bench) -> None:
    serving = bench.serve(*LONG)
    with a_crew(bench.endpoint) as crew:
        crew.wait_for_answers(8)
        serving.send_signal(signal.SIGTERM)
        code, said = bench.end_of(serving)
        assert code == 143, said
        assert "the same command goes on with it" in said
        serving = bench.serve(*LONG)
        crew.wait_until_home()
        assert bench.end_of(serving)[0] == 0, bench.said()
    (run,) = bench.runs
    summary = read_summary(run)
    assert summary["ledger"]["closed"]  # type: ignore[index]
    assert "run_end" not in summary["ledger"]["dropped"]  # type: ignore[index]


@pytest.mark.parametrize("victim", ["serve", "broker"])
def test_a_crash_ends_both_processes_and_not_the_run(bench: Bench, victim: str) -> None:
    serving = bench.serve(*LONG)
    with a_crew(bench.endpoint) as crew:
        crew.wait_for_answers(8)
        (run,) = bench.runs
        broker = pid_of_broker(run)
        os.kill(serving.pid if victim == "serve" else broker, signal.SIGKILL)
        code, said = bench.end_of(serving)
        assert code == (-9 if victim == "serve" else 1), said
        until(lambda: not Path(f"/proc/{broker}").exists(), "the broker is gone")
        serving = bench.serve(*LONG)
        crew.wait_until_home()
        assert bench.end_of(serving)[0] == 0, bench.said()
    assert bench.runs == [run]
    assert read_summary(run)["ended"] == "done"


def test_a_stopped_run_closes_its_ledger_and_its_stages_go_home(bench: Bench) -> None:
    serving = bench.serve("--name", "first", "--set", "schedule.steps=1000")
    with a_crew(bench.endpoint) as crew:
        crew.wait_for_answers(8)
        stopped = bench.tidemill("stop", "first")
        assert stopped.returncode == 0, stopped.stderr
        assert re.match(r"the run is stopped: \d+ issued", stopped.stdout)
        crew.wait_until_home()
        assert bench.end_of(serving)[0] == 0, bench.said()
    summary = read_summary(bench.folder / "runs" / "first")
    assert summary["ended"] == "stopped"
    assert summary["ledger"]["closed"]  # type: ignore[index]


def test_a_failed_run_fails_once_and_goes_on_when_it_is_asked_to(bench: Bench) -> None:
    serving = bench.serve()
    roles = [role for role in STAGES if role is not Role.REWARD]
    with a_crew(bench.endpoint, roles) as crew:
        crew.add(Role.REWARD, peer=FailingReward())
        code, said = bench.end_of(serving)
    assert code == 1, said
    assert "the run failed" in said
    assert "--resume" in said
    again = bench.tidemill("serve", "pipeline.toml", "--endpoint", bench.endpoint)
    assert again.returncode == 1
    assert "the run failed" in again.stdout
    serving = bench.serve("--resume")
    with a_crew(bench.endpoint) as crew:
        crew.wait_until_home()
        assert bench.end_of(serving)[0] == 0, bench.said()
    (run,) = bench.runs
    assert read_summary(run)["ended"] == "done"


def test_stopping_a_run_without_a_broker_says_so(bench: Bench) -> None:
    ended = bench.tidemill("stop", f"ipc://{bench.folder}/nobody")
    assert ended.returncode == 2
    assert "no broker answers" in ended.stderr


def test_a_broker_that_nobody_would_find_is_bad_input(bench: Bench) -> None:
    ended = bench.tidemill("serve", "pipeline.toml")
    assert ended.returncode == 2
    assert "broker.endpoint is empty" in ended.stderr
    assert not (bench.folder / "runs").exists()


def test_what_the_stages_would_refuse_is_bad_input_before_anything_is_made(bench: Bench) -> None:
    ended = bench.tidemill("serve", "pipeline.toml", "--endpoint", bench.endpoint, "--set", "stages.reward.verifier=nowhere:verifier")
    assert ended.returncode == 2
    assert "nowhere" in ended.stderr
    assert not (bench.folder / "runs").exists()


def test_two_commands_do_not_serve_one_run(bench: Bench) -> None:
    bench.serve("--name", "first")
    bench.wait_until("stages come to")
    other = bench.tidemill("serve", "pipeline.toml", "--endpoint", f"{bench.endpoint}-2", "--name", "first")
    assert other.returncode == 2
    assert "first" in other.stderr


def test_a_broker_that_cannot_be_started_is_one_line_with_what_to_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.folder)
    config = load_config(bench.folder / "pipeline.toml", [f'broker.endpoint="{bench.endpoint}"', 'run.name="first"'])
    logs = new_run_directory(config) / "logs"
    logs.rmdir()
    logs.write_text("in the way")
    ended = bench.tidemill("serve", "pipeline.toml", "--endpoint", bench.endpoint, "--name", "first")
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert re.match(
        r"tidemill: run first: the broker cannot be started: File exists: .*/first/logs; then give the same command again", line
    )


def test_a_run_that_this_user_may_not_write_in_is_bad_input(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.folder)
    config = load_config(bench.folder / "pipeline.toml", [f'broker.endpoint="{bench.endpoint}"', 'run.name="first"'])
    (new_run_directory(config) / "up.lock").mkdir()
    ended = bench.tidemill("serve", "pipeline.toml", "--endpoint", bench.endpoint, "--name", "first")
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert "first/up.lock: Is a directory" in line
