"""Two real agents and a real broker: who works in the run directory, who in its own, and what is said of what cannot run."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.skeleton.broker_process import HOUSE, BrokerProcess
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

PATIENCE_S = 120.0
"""A bound, never a measure."""


@contextmanager
def an_agent(broker: BrokerProcess, name: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "stages.host", "--broker", broker.endpoint, "--name", name, "--slots", "cpu:0", *arguments]
    with (folder / f"{name}.out").open("wb") as out, subprocess.Popen(command, cwd=HOUSE, stdout=out, stderr=out) as process:
        yield process
        process.terminate()


def test_each_works_in_its_place_and_what_can_run_nowhere_ends_the_run_with_its_words(tmp_path: Path) -> None:
    """The environment of this run is nowhere: one host after the other finds that out."""
    broker = BrokerProcess(tmp_path / "run", a_run_config(tmp_path, "host.wait_for=2", "stages.env.replicas=2", "host.restart_limit=1"))
    resolved = tmp_path / "resolved.json"
    broker.config = broker.config.rename(resolved)
    with ExitStack() as stack:
        stack.callback(broker.close)
        broker.start()
        assert json.loads((broker.run / "config.json").read_text()) == json.loads(resolved.read_text())
        head = stack.enter_context(an_agent(broker, "head", tmp_path))
        far = stack.enter_context(an_agent(broker, "far", tmp_path, "--directory", str(tmp_path / "far"), "--roles", "env,reward"))
        until(lambda: (broker.run / "failure.json").exists(), "the run fails", broker.log, PATIENCE_S)
        assert broker.wait() == 1
        assert (head.wait(PATIENCE_S), far.wait(PATIENCE_S)) == (0, 0)
    assert json.loads((broker.run / "failure.json").read_text())["last_lines"]
    here, there = ({log.name for log in folder.iterdir()} for folder in (broker.run / "logs", tmp_path / "far" / "run" / "logs"))
    assert "actor-train-0.log" in here
    assert any(name.startswith("env") for name in there)
    assert not any(name.startswith(("actor-train", "weight-sync", "rollout", "reference")) for name in there)
    notes = [json.loads(line) for line in (broker.run / "broker.log").read_text().splitlines() if line.startswith("{")]
    unfit = [note for note in notes if note["event"] == "host_unfit"]
    assert unfit
    assert all(note["why"] for note in unfit)
