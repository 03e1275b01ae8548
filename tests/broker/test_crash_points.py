"""kill -9 of a real broker at every point between a message and its acknowledgement.

Nothing that was acknowledged is missing, nothing is taken twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broker.streaming import Streamer, taken, whole
from tests.skeleton.broker_process import HOUSE, BrokerProcess
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

BURST = 200
"""Enough for a batch of several blocks."""


class CrashingBroker(BrokerProcess):
    """Its first life ends at `point`."""

    def start_to_crash(self, point: str, count: int) -> None:
        (self.run / "endpoint").unlink(missing_ok=True)
        places = ("--run-directory", str(self.run), "--config", str(self.config), "--endpoint", self.endpoint)
        command = [sys.executable, "-m", "tests.broker.crashing_broker", point, str(count), *places]
        with (self.run / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=HOUSE, stderr=log, stdout=log)
        until(lambda: (self.run / "endpoint").exists() or self._popen.poll() is not None, "the broker binds", self.log)

    @property
    def is_dead(self) -> bool:
        return self._popen.poll() is not None


def recovered(run: Path) -> dict[str, Any]:
    """What the broker's second life said about its start."""
    lines = [json.loads(line) for line in (run / "broker.log").read_text().splitlines() if line.startswith("{")]
    return next(line for line in lines if line.get("event") == "recovered")


@pytest.mark.parametrize(("point", "count"), [("received", 250), ("written", 1), ("synced", 2), ("torn", 0)])
def test_no_point_between_a_message_and_its_acknowledgement_loses_or_doubles_it(tmp_path: Path, point: str, count: int) -> None:
    broker = CrashingBroker(tmp_path / "run", a_run_config(tmp_path))
    streamer = None
    try:
        broker.start_to_crash(point, count)
        streamer = Streamer(broker.endpoint)

        def died() -> bool:
            if streamer.look() < BURST:
                streamer.stream(BURST)
            return broker.is_dead

        until(died, f"the broker dies at {point}", broker.log)
        assert broker.wait() == -9
        broker.start()
        streamer.stream(1)
        streamer.wait_until_answered()
        broker.terminate()
        assert broker.wait() == 0
    finally:
        if streamer is not None:
            streamer.client.close()
        broker.close()
    assert taken(broker.run, streamer.name) == whole(streamer.sent)
    assert (recovered(broker.run)["cut_bytes"] > 0) == (point == "torn")
