"""What people and their programs read is JSON, whatever user code reckoned."""

import json
from pathlib import Path

import pytest

from broker.reports import Reports, write_json


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_written_as_null(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "summary.json", {"accuracy": value, "steps": [{"reward": value}, 1.5]})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    assert read == {"accuracy": None, "steps": [{"reward": None}, 1.5]}


def test_metrics_that_a_full_disk_did_not_take_are_written_once_there_is_room(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    roomy = reports._metrics
    with open("/dev/full", "ab", buffering=0) as full:
        reports._metrics = full
        reports.step(1, {"reward": 0.5})
        reports.step(2, {"reward": 0.6})
    reports._metrics = roomy
    reports.step(3, {"reward": 0.7})
    reports.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
