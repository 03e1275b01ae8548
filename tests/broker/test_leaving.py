"""A broker that is told to leave ends itself and not its run: whoever is started next on the directory goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from broker.__main__ import EXIT_LEFT
from broker.pulse import HEALTH_VARIABLE
from tests.broker.test_restarts import check_that_every_ticket_ended_once, read_summary
from tests.skeleton.broker_process import HOUSE, BrokerProcess
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until


class LeavingBroker(BrokerProcess):
    """As a container runs it."""

    arguments = ("--leave-on-sigterm",)


def test_a_broker_that_leaves_in_the_middle_of_a_run_loses_nothing(tmp_path: Path) -> None:
    broker = LeavingBroker(tmp_path / "run", a_run_config(tmp_path))
    try:
        broker.start()
        with a_crew(broker.endpoint) as crew:
            crew.wait_for_answers(8)
            broker.terminate()
            assert broker.wait() == EXIT_LEFT, broker.log()
            assert not (tmp_path / "run" / "summary.json").exists()
            broker.start()
            crew.wait_until_home()
            assert broker.wait() == 0, broker.log()
    finally:
        broker.close()
    check_that_every_ticket_ended_once(tmp_path / "run")
    assert read_summary(tmp_path / "run")["ledger"]["dropped"].get("run_end", 0) == 0


def test_a_broker_shows_by_its_file_that_it_is_at_work(tmp_path: Path) -> None:
    file = tmp_path / "healthy"
    file.write_text("left by another")
    broker = LeavingBroker(tmp_path / "run", a_run_config(tmp_path), environment={HEALTH_VARIABLE: str(file)})
    try:
        broker.start()
        until(lambda: file.is_file() and file.read_text() == "starting, step 0\n", "the broker's pulse beats", broker.log)
        before = file.stat().st_mtime_ns
        until(lambda: file.stat().st_mtime_ns > before, "it beats again", broker.log)
    finally:
        broker.close()


def test_a_pulse_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    run = tmp_path / "run"
    broker = LeavingBroker(run, a_run_config(tmp_path), environment={HEALTH_VARIABLE: str(tmp_path / "nowhere" / "healthy")})
    try:
        command = [
            sys.executable,
            "-m",
            "broker",
            "--run-directory",
            str(run),
            "--config",
            str(broker.config),
            "--endpoint",
            broker.endpoint,
        ]
        ended = subprocess.run(command, cwd=HOUSE, env=broker.environment, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert "nowhere/healthy: cannot be written (No such file or directory)" in ended.stderr
    finally:
        broker.close()
