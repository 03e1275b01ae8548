"""`tidemill top`, `doctor` and `dead` as a user meets them, on a real run whose verifier fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.edges import STAGES, Role
from tests.skeleton.broker_process import HOUSE, BrokerProcess, a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until
from tests.tools.observe.stalls import FailingReward
from tools.observe.doctor import examine
from tools.observe.target import find


def tidemill(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools", *arguments]
    return subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A run whose first episodes become dead letters."""
    folder = tmp_path_factory.mktemp("failing")
    config = a_run_config(folder, "broker.member_retries=0", "evaluation.problems=12", "broker.stall_notice_s=600")
    others = [role for role in STAGES if role is not Role.REWARD]
    with a_broker_process(folder / "run", config) as broker, a_crew(broker.endpoint, others) as crew:
        reward = FailingReward()
        reward.limit = 5
        crew.add(Role.REWARD, peer=reward)
        until(lambda: _letters(broker) == reward.limit, "letters come", broker.log)
        yield broker


def _letters(broker: BrokerProcess) -> int:
    body = examine(find(str(broker.run))).body
    return int(body["dead_letters"]["kept"]) if body else 0


def test_letters_are_listed_shown_and_tried_again(run: BrokerProcess) -> None:
    listed = tidemill("dead", "list", str(run.run), "--json")
    letters = json.loads(listed.stdout)
    assert letters[-1]["cause"] == "verifier: ZeroDivisionError: division by zero"
    shown = tidemill("dead", "show", str(letters[-1]["id"]), run.endpoint)
    assert shown.returncode == 0, shown.stderr
    assert "reward-0, episodes, attempt 1: verifier: ZeroDivisionError" in shown.stdout
    assert "  tokens: [" in shown.stdout
    again = tidemill("dead", "retry", str(letters[-1]["id"]), run.endpoint)
    assert again.returncode == 0, again.stderr
    twice = tidemill("dead", "retry", str(letters[-1]["id"]), run.endpoint)
    assert twice.returncode == 1
    assert "tried again before" in twice.stderr


def test_a_letter_that_is_not_there_is_said(run: BrokerProcess) -> None:
    shown = tidemill("dead", "show", "999999", run.endpoint)
    assert shown.returncode == 1
    assert "no dead letter 999999" in shown.stderr


def test_top_once_shows_queues_clients_and_findings_in_plain_lines(run: BrokerProcess) -> None:
    shown = tidemill("top", str(run.run), "--once")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert any(line.startswith("queue") and "starved" in line and "blocked" in line for line in lines)
    assert any(line.startswith("env-0") and "ready" in line for line in lines)
    assert lines[-1].startswith("trouble: dead letters grow")


def test_top_as_json_is_the_whole_status(run: BrokerProcess) -> None:
    body = json.loads(tidemill("top", run.endpoint, "--once", "--json").stdout)
    assert {"queues", "processes", "findings", "graph", "ledger"} <= body.keys()


def test_doctor_as_json_says_what_is_wrong_and_ends_with_1(run: BrokerProcess) -> None:
    shown = tidemill("doctor", run.endpoint, "--json")
    assert shown.returncode == 1
    said = json.loads(shown.stdout)
    assert said["findings"][0]["rule"] == "dead_letters"
    assert not said["healthy"]


def test_letters_of_a_broker_that_is_gone_are_read_from_its_journal(run: BrokerProcess) -> None:
    before = json.loads(tidemill("dead", "list", str(run.run), "--json").stdout)
    run.kill()
    listed = tidemill("dead", "list", str(run.run), "--json")
    assert listed.returncode == 0, listed.stderr
    assert "this is what its journal says" in listed.stderr
    after = json.loads(listed.stdout)
    assert [(letter["id"], letter["cause"], letter["retried"]) for letter in after] == [
        (letter["id"], letter["cause"], letter["retried"]) for letter in before
    ]
    shown = tidemill("dead", "show", str(after[-1]["id"]), str(run.run))
    assert "  tokens: [" in shown.stdout
    again = tidemill("dead", "retry", str(after[-1]["id"]), str(run.run))
    assert again.returncode == 1
    assert f"--name {run.run.name} --resume" in again.stderr


def test_a_run_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    for command in (["top"], ["doctor"], ["dead", "list"]):
        shown = tidemill(*command, str(tmp_path / "nothing"))
        assert shown.returncode == 2
        assert "neither a run directory" in shown.stderr


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "tcp://127.0.0.1:7940x", "tcp://", "ipc://", "http://127.0.0.1:7940"])
def test_an_address_that_is_none_is_named_with_what_is_one(address: str) -> None:
    shown = tidemill("top", address, "--once")
    assert shown.returncode == 2
    assert f"'{address}': expected tcp://<address>:<port> or ipc://<path>" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1
