"""`tidemill inspect`, `story` and `cut` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools.records.recorded import entries_of, tidemill, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("commands") / "run", entries_of())


def test_the_whole_is_shown_and_printed_as_json(run: Path) -> None:
    shown = tidemill("inspect", str(run))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "the run has ended" in shown.stdout
    body = json.loads(tidemill("inspect", str(run), "--json").stdout)
    assert body["queues"]["episodes"]["records"] == body["queues"]["scored"]["records"] > 0
    assert (body["phase"], body["missing"], body["damage"], body["torn_bytes"]) == ("closed", [], [], 0)


def test_records_are_listed_opened_and_shown_as_a_conversation(run: Path) -> None:
    listed = [json.loads(line) for line in tidemill("inspect", str(run), "--queue", "episodes", "--json").stdout.splitlines()]
    assert {line["queue"] for line in listed} == {"episodes"}
    record = json.loads(tidemill("inspect", str(run), "--record", listed[0]["record"], "--json").stdout)
    assert record["header"]["ticket"] == listed[0]["ticket"]
    assert (record["unknown_fields"], record["missing_fields"], record["remarks"]) == ([], [], [])
    talk = json.loads(tidemill("inspect", str(run), "--episode", str(listed[0]["ticket"]), "--json").stdout)
    assert [token["id"] for piece in talk["pieces"] for token in piece["tokens"]] == record["arrays"]["tokens"]


def test_a_story_is_a_table_json_and_a_trace(run: Path, tmp_path: Path) -> None:
    shown = tidemill("story", "ticket:9", str(run), "--trace", str(tmp_path / "trace.json"))
    assert shown.returncode == 0
    assert "became of it: " in shown.stdout
    body = json.loads(tidemill("story", "ticket:9", str(run), "--json").stdout)
    assert body["facts"][0]["kind"] == "issued"
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_cut_opens_with_every_command(run: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "out.tide")
    made = tidemill("cut", str(run), "--around", "ticket:9", file, "--redact")
    assert made.returncode == 0, made.stderr
    views = (("inspect", file), ("inspect", file, "--queue", "turns"), ("inspect", file, "--episode", "9"), ("story", "ticket:9", file))
    for arguments in views:
        shown = tidemill(*arguments)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inspect", "nowhere"), "nowhere: neither a run directory"),
        (("inspect", "RUN", "--queue", "foo"), "queue 'foo'"),
        (("inspect", "RUN", "--stage", "foo"), "stage 'foo'"),
        (("inspect", "RUN", "--reward", "much"), "'<0.5'"),
        (("inspect", "RUN", "--reward", ">nan"), "'<0.5'"),
        (("inspect", "RUN", "--from", "nan"), "--from nan: seconds since the run's beginning are wanted, 0 or more"),
        (("inspect", "RUN", "--to", "inf"), "--to inf: seconds"),
        (("inspect", "RUN", "--from", "-1", "--failed"), "--from -1: seconds"),
        (("inspect", "RUN", "--from", "10", "--to", "5"), "--from 10 --to 5: nothing lies between"),
        (("replay", "RUN", "--stage", "reward", "--from", "nan"), "--from nan: seconds"),
        (("replay", "RUN", "--stage", "reward", "--speed", "nan"), "--speed nan: expected max"),
        (("replay", "RUN", "--stage", "reward", "--speed", "infx"), "--speed infx: expected max"),
        (("whatif", "RUN", "--policy", "placement=least_in_flight", "--to", "-5"), "--to -5: seconds"),
        (("inspect", "RUN", "--session", "a.b"), "a number is wanted"),
        (("inspect", "RUN", "--record", "999999"), "there is none"),
        (("inspect", "RUN", "--episode", "999999"), "nothing of it is recorded"),
        (("story", "ticket", "RUN"), "wanted is one of"),
        (("story", "step:99", "RUN"), "nothing of it is recorded"),
        (("story", "session:9.7", "RUN"), "no such attempt"),
        (("story", "ticket:9", "RUN", "--trace", "/nowhere/trace.json"), "No such file"),
        (("cut", "RUN", "--around", "ticket:9", "/nowhere/out.tide"), "No such file"),
        (("cut", "RUN", "--around", "ticket:9", "RUN"), "is there already"),
        (("inspect", "TEXT"), "not a file made by `tidemill cut`"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str, run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no zip")
    result = tidemill(*({"RUN": str(run), "TEXT": str(text)}.get(argument, argument) for argument in arguments))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("tidemill: ")
    assert words in line
