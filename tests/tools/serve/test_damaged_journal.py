"""A journal that lost what its state needs: said once and for all, and gone on with where a person accepts the loss."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.journal import Entry
from broker.journal.reading import Scan
from schemas.config import load_config
from tests.broker.journal.lives import Life
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until
from tests.tools.serve.test_serve import LONG, Bench, pid_of_broker, read_summary
from tools.up.directory import new_run_directory

ACCEPTED = ("--set", "broker.accept_loss=true")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def begin_and_kill(bench: Bench) -> Path:
    """The directory of a run whose broker died at work."""
    serving = bench.serve("--name", "first", *LONG)
    with a_crew(bench.endpoint) as crew:
        crew.wait_for_answers(60)  # what is damaged below lies far behind the last commit, which a kill may tear
        kill_broker(bench)
        assert bench.end_of(serving)[0] == 1, bench.said()
    return bench.folder / "runs" / "first"


def kill_broker(bench: Bench) -> None:
    pid = pid_of_broker(bench.folder / "runs" / "first")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the broker is gone")


def damage(run: Path, number: int) -> None:
    """One bit of the head of one entry, and every checkpoint."""
    for path in (run / "journal").glob("*.checkpoint"):
        path.unlink()
    victim = next(item for item in Scan(run / "journal") if isinstance(item, Entry) and item.number == number)
    path = run / "journal" / f"{victim.position.segment:08d}.log"
    data = bytearray(path.read_bytes())
    data[victim.position.offset + 20] ^= 1
    path.write_bytes(data)


def test_damage_is_final_says_its_cure_and_the_cure_works_for_one_start(bench: Bench) -> None:
    run = begin_and_kill(bench)
    damage(run, 20)
    code, said = bench.end_of(bench.serve("--name", "first", *LONG))
    assert code == 1, said
    assert "the run failed: broker: " in said
    assert "entry 20 is lost; no checkpoint covers that" in said
    assert "all that hung on it, acknowledged work too: the same command with --name first --resume --set broker.accept_loss=true" in said
    again = bench.tidemill("doctor", "runs/first")
    assert "entry 20 is lost" in again.stdout.splitlines()[0]

    dead = pid_of_broker(run)
    serving = bench.serve("--name", "first", "--resume", *LONG, *ACCEPTED)
    until(lambda: pid_of_broker(run) != dead, "the broker is at work", bench.said)
    bench.wait_until("the journal is damaged, entry 20 lost (journal/quarantine.json): ")
    assert not json.loads((run / "config.json").read_text())["broker"]["accept_loss"]
    kill_broker(bench)
    assert bench.end_of(serving)[0] == 1, bench.said()
    serving = bench.serve("--name", "first", *LONG)
    with a_crew(bench.endpoint) as crew:
        crew.wait_until_home()
        assert bench.end_of(serving)[0] == 0, bench.said()
    assert read_summary(run)["ended"] == "done"


def test_a_loss_that_nothing_can_make_good_is_not_told_to_be_accepted(bench: Bench) -> None:
    run = begin_and_kill(bench)
    damage(run, 0)
    code, said = bench.end_of(bench.serve("--name", "first", *LONG))
    assert code == 1, said
    assert "entry 0 is lost" in said
    assert "put the file back from a copy, or begin another run" in said
    assert "accept_loss" not in said


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_segment_that_is_gone_behind_a_checkpoint_is_said_before_the_run_goes_on(
    bench: Bench, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.folder)
    endpoint = f'broker.endpoint="{bench.endpoint}"'
    run = new_run_directory(load_config(bench.folder / "pipeline.toml", [endpoint, 'run.name="first"']))
    life = Life(run / "journal")
    life.play()
    life.close()
    (run / "journal" / "00000001.log").unlink()
    (run / "logs").rmdir()
    (run / "logs").write_text("in the way, so that nothing is started")
    ended = bench.tidemill(command, "pipeline.toml", "--set", endpoint, "--name", "first", "--resume")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count("the journal lacks 00000001.log: the run goes on") == 1
