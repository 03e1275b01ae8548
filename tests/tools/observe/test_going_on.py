"""How to go on with a run whose broker is dead: by the command that began it, which may have been `tidemill serve`."""

import json
from pathlib import Path

import pytest

from tests.tools.observe.test_commands import tidemill
from tools.observe.doctor import read_facts
from tools.observe.silence import ProcessLook, RunFacts, why_no_retry, why_silent
from tools.observe.target import Target


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:7700"])
def test_serve_is_named_where_the_configuration_fixes_the_address(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"broker": {"endpoint": endpoint}}))
    (tmp_path / "broker.pid").write_text(str(2**22 + 1))  # more than any process has
    facts = read_facts(Target(endpoint="tcp://127.0.0.1:7700", directory=tmp_path), 0.1)
    assert facts.process is ProcessLook.GONE
    (found,) = why_silent(facts)
    assert found.rule == "broker_dead"
    serving = f"the same tidemill serve again (--endpoint tcp://127.0.0.1:7700 --name {tmp_path.name})"
    assert (serving in found.advice) is bool(endpoint)
    assert f"the same tidemill up again, each --set as before, with --name {tmp_path.name} --resume" in found.advice


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:7700"])
def test_who_wants_a_dead_letter_tried_again_is_told_of_serve_where_the_run_began_by_it(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"broker": {"endpoint": endpoint}}))
    told = tidemill("dead", "retry", "1", str(tmp_path))
    assert told.returncode == 1
    first = told.stderr.splitlines()[0]
    assert first.startswith("tidemill: only a broker can try it again; go on")
    assert f"the same tidemill up again, each --set as before, with --name {tmp_path.name} --resume" in first
    assert (f"tidemill serve again (--endpoint {endpoint} --name {tmp_path.name})" in first) is bool(endpoint)


def test_serve_is_told_to_go_on_with_a_run_that_failed_and_nobody_with_one_that_is_done(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"broker": {"endpoint": "tcp://127.0.0.1:7700"}}))
    (tmp_path / "failure.json").write_text("{}")
    facts = read_facts(Target(endpoint="", directory=tmp_path), 0.1)
    assert f"--name {tmp_path.name} --resume), or the same tidemill up" in why_no_retry(facts)
    (tmp_path / "summary.json").write_text(json.dumps({"ended": "done"}))
    assert why_no_retry(read_facts(Target(endpoint="", directory=tmp_path), 0.1)).startswith("the run has reached its steps")


def test_a_run_without_a_configuration_is_still_explained(tmp_path: Path) -> None:
    facts: RunFacts = read_facts(Target(endpoint="", directory=tmp_path), 0.1)
    assert facts.fixed == ""


INFO = '{"client": "rollout-0", "event": "client_left", "level": "info"}\n'
ERROR = '{"error": "no room", "event": "broker_stopped", "level": "error"}\n'


@pytest.mark.parametrize(("log", "words"), [(INFO, ""), (ERROR + INFO, "; its last word: error broker_stopped error=no room")])
def test_the_last_word_of_a_dead_broker_is_of_what_was_wrong(tmp_path: Path, log: str, words: str) -> None:
    (tmp_path / "broker.pid").write_text(str(2**22 + 1))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "broker.log").write_text(log)
    (found,) = why_silent(read_facts(Target(endpoint="", directory=tmp_path), 0.1))
    assert found.what == f"the broker (process {2**22 + 1}) is dead: nobody answers{words}"


@pytest.mark.parametrize("text", ["[]", "{", '{"broker": []}', "null"])
def test_a_run_whose_configuration_is_damaged_is_still_explained(tmp_path: Path, text: str) -> None:
    for name in ("config.json", "summary.json", "failure.json"):
        (tmp_path / name).write_text(text)
    facts = read_facts(Target(endpoint="", directory=tmp_path), 0.1)
    assert facts.fixed == ""
    told = tidemill("doctor", str(tmp_path))
    assert told.returncode in (0, 1)
    assert "Traceback" not in told.stderr
