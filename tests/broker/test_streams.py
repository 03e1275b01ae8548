"""A client streams while its broker is killed again and again: everything is taken, in order, once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from broker.core.events import Restarted
from tests.broker.folding import events_of
from tests.broker.streaming import Streamer, taken, whole
from tests.skeleton.broker_process import a_broker_process
from tests.skeleton.config import a_run_config

SEED = 33
BURST = 300


def check(folder: Path, restarts: int) -> None:
    print(f"seed {SEED}")
    rng, run = Random(SEED), folder / "run"
    with a_broker_process(run, a_run_config(folder, "broker.segment_bytes=262144")) as broker:
        streamer = Streamer(broker.endpoint)
        try:
            for _ in range(restarts):
                streamer.stream(BURST)
                streamer.wait_until_answered(rng.randrange(BURST + 1))  # some on the way, some journaled, some answered
                broker.kill()
                streamer.stream(rng.randrange(5))
                broker.start()
            streamer.wait_until_answered()
            broker.terminate()
            assert broker.wait() == 0
        finally:
            streamer.client.close()
    assert taken(run, streamer.name) == whole(streamer.sent)
    assert sum(isinstance(event, Restarted) for event in events_of(run)) == restarts


def test_a_stream_over_deaths_of_its_broker_is_complete_in_order_and_without_doubles(tmp_path: Path) -> None:
    check(tmp_path, 3)


@pytest.mark.slow
def test_a_stream_over_a_hundred_deaths_of_its_broker_is_complete_in_order_and_without_doubles(tmp_path: Path) -> None:
    check(tmp_path, 100)
