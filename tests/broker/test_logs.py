"""A log is for people: what it cannot take ends no process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from broker.logs import Lines
from tests.skeleton.broker_process import HOUSE

LOUD = """
import structlog
from broker.logs import configure_logs
configure_logs(process="loud")
for number in range(3):
    structlog.get_logger().info("said", number=number)
print("alive")
"""


def test_a_process_whose_log_lies_on_a_full_disk_goes_on_and_ends_in_order() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", LOUD], cwd=HOUSE, stdout=subprocess.PIPE, stderr=full, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"alive\n")


def test_the_next_line_that_can_be_written_says_how_many_were_lost(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full, open(tmp_path / "log", "w") as roomy:
        lines = Lines(full)
        for number in range(4):
            lines._stream = full if number < 2 else roomy
            print(json.dumps({"number": number}), file=lines, flush=True)
    assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()] == [
        {"event": "log_lines_lost", "lines": 2, "level": "warning"}, {"number": 2}, {"number": 3},
    ]  # fmt: skip
