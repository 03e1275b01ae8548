"""`tidemill bench weights`: figures under fixed names, from real copies; nothing left behind."""

from __future__ import annotations

import io
import json
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.stages.blobs.test_deltas import versions
from tools.bench.processes import BenchError, Crew
from tools.bench.weights import Link, WeightsPlan, measure, show
from tools.bench.weights_delta import WEIGHTS, Run, compare, measure_run

TINY = WeightsPlan(megabytes=3, rounds=1, runs=())


def test_every_ratio_has_its_name_and_the_copies_are_whole() -> None:
    console = Console(file=io.StringIO(), width=160)
    found = json.loads(json.dumps(measure(TINY, console)))
    assert set(found["ratios"]) == {
        "weights_of_tcp", "weights_of_tcp_to_disk", "weights_of_zeromq", "weights_curve_of_zeromq_curve", "weights_curve_of_plain",
        "weights_bytes_a_host_of_file", "weights_fan_out_of_one_after_another",
    }  # fmt: skip
    assert found["ratios"]["weights_bytes_a_host_of_file"] == 1.0, "however many processes of a machine ask, it crosses once"
    assert all(rate > 0 for rates in found["rates_mb_s"].values() for rate in rates)
    show(found, console)
    assert "weights_of_tcp_to_disk" in console.file.getvalue()  # type: ignore[attr-defined]


def test_senders_and_receivers_end_with_the_benchmark() -> None:
    with Crew() as crew:
        link = Link(crew, 1)
        link.copy("channel+curve")
        ends = psutil.Process().children(recursive=True)
        assert ends
    assert [process for process in ends if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert not crew.directory.exists()


def test_a_receiver_that_fails_is_told_with_its_story(tmp_path: Path) -> None:
    with Crew() as crew:
        link = Link(crew, 1)
        link._digest = "0" * 16
        with pytest.raises(BenchError, match="hashes to"):
            link.copy("channel")


def test_deltas_are_compared_pair_by_pair(tmp_path: Path) -> None:
    files = [path / WEIGHTS for path in versions(tmp_path / "run", 3, size=1e-3)]
    (tmp_path / "scratch").mkdir()
    found = compare(files, tmp_path / "scratch")
    assert found["pairs"] == 2
    assert 0 < found["least"] <= found["share"] <= found["most"] < 1
    assert 0 < found["changed"] < 1


@pytest.mark.slow
def test_a_real_run_is_compared_as_published_and_in_bfloat16() -> None:
    with Crew() as crew:
        found = measure_run(crew, Run(name="real", dtype="float32"), 4, lambda what: None)
    assert found["steps"] == 4
    assert set(found["versions"]) == {"float32", "bfloat16"}
    assert found["versions"]["bfloat16"]["share"] < found["versions"]["float32"]["share"] < 1
