"""What people and their programs read is JSON, whatever user code reckoned."""

import json
from pathlib import Path

import pytest

from broker.reports import write_json


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_written_as_null(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "summary.json", {"accuracy": value, "steps": [{"reward": value}, 1.5]})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    assert read == {"accuracy": None, "steps": [{"reward": None}, 1.5]}
