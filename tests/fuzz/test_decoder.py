"""The decoder under a coverage-guided fuzzer, for as long as a slow test may take; `make fuzz` goes on longer."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
SECONDS = 30


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install -e '.[fuzz]'")
def test_a_coverage_guided_fuzzer_finds_nothing_that_the_decoder_does_not_refuse(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.decoder", str(SECONDS)]
    environment = {**os.environ, "PYTHONPATH": str(HOUSE)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS + 120)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "stat::number_of_executed_units" in ended.stderr
