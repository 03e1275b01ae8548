"""Connections that take every descriptor: the journal of a real broker goes on."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from schemas.edges import Role
from schemas.messages import Committed, Credit, StatusAsked, Welcome
from tests.broker.folding import entries_of, fold
from tests.broker.security.gate import Street
from tests.skeleton.broker_process import HOUSE
from tests.skeleton.config import a_run_config
from tests.skeleton.waiting import until

FILES = 96


def test_out_of_descriptors_the_journal_goes_on_into_new_segments(tmp_path: Path) -> None:
    """Connections take every descriptor that is left; those connected before are served, and what they say becomes durable."""
    street = Street()
    run, config = tmp_path / "run", tmp_path / "config.json"
    run.mkdir()
    config.write_text(json.dumps(a_run_config(tmp_path, "broker.segment_bytes=65536")))
    command = [sys.executable, "-m", "broker", "--run-directory", str(run), "--config", str(config), "--endpoint", "tcp://127.0.0.1:*"]
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))  # noqa: E731
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=HOUSE, stdout=log, stderr=log, preexec_fn=limit, env=dict(os.environ))
    try:
        until(lambda: (run / "endpoint").exists() and (run / "endpoint").read_text(), "the broker binds", (tmp_path / "log").read_text)
        endpoint = (run / "endpoint").read_text()
        served = street.knock(endpoint, "reward-0/i1")
        assert isinstance(served.hello(Role.REWARD, "reward-0"), Welcome)
        crowd = [street.knock(endpoint, f"crowd-{number}/i1") for number in range(2 * FILES)]
        for one in crowd:
            one.say(StatusAsked())
        until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) >= FILES - 1, "no descriptor is left")
        for wave in range(10):
            for seq in range(wave * 200 + 1, wave * 200 + 201):
                served.say(Credit(epoch=1, seq=seq, queue="episodes", window=seq))
            while served.hear_a(Committed).seq < wave * 200 + 200:
                pass
        assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
        assert len(list((run / "journal").glob("*.log"))) > 2
    finally:
        process.kill()
        process.wait()
        street.close()
    state, _ = fold(entries_of(run))
    assert state.clients["reward-0"].next_seq == 2_001
