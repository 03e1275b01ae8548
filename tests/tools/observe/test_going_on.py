"""How to go on with a run whose broker is dead: by the command that began it, which may have been `tidemill serve`."""

import json
from pathlib import Path

import pytest

from tools.observe.doctor import read_facts
from tools.observe.silence import ProcessLook, RunFacts, why_silent
from tools.observe.target import Target


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:7700"])
def test_serve_is_named_where_the_configuration_fixes_the_address(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"broker": {"endpoint": endpoint}}))
    (tmp_path / "broker.pid").write_text(str(2**22 + 1))  # more than any process has
    facts = read_facts(Target(endpoint="tcp://127.0.0.1:7700", directory=tmp_path), 0.1)
    assert facts.process is ProcessLook.GONE
    (found,) = why_silent(facts)
    assert found.rule == "broker_dead"
    assert ("the same tidemill serve again (--endpoint tcp://127.0.0.1:7700)" in found.advice) is bool(endpoint)
    assert "tidemill up FILE --name NAME --resume" in found.advice


def test_a_run_without_a_configuration_is_still_explained(tmp_path: Path) -> None:
    facts: RunFacts = read_facts(Target(endpoint="", directory=tmp_path), 0.1)
    assert facts.fixed == ""
