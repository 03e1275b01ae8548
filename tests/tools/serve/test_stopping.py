"""What `tidemill stop` says of a run that closes faster than it can be looked at."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from schemas.codec import decode_client_message, encode_message
from schemas.messages import Status, StatusAsked, StopAsked
from tools.serve.stopping import stop

PATIENCE_MS = 20_000
"""A bound, never a measure."""


def ledger(trained: int) -> dict[str, object]:
    return {"issued": 9, "in_flight": 9 - trained, "trained": trained, "dropped": {}, "failed": {}, "evaluated": 0}


@contextmanager
def a_broker_that_goes_at_once(run: Path, *, answers_the_stop: bool) -> Iterator[None]:
    """Tells of 4 trained tickets when it is asked, of 5 when it is stopped, and is gone."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.linger = 1000
    socket.rcvtimeo = PATIENCE_MS
    (run / "endpoint").write_text(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    (run / "config.json").write_text("{}")

    def serve() -> None:
        with socket:
            while True:
                sender, frame = socket.recv_multipart()
                message = decode_client_message(frame)
                if isinstance(message, StatusAsked):
                    socket.send_multipart([sender, encode_message(Status(body={"ledger": ledger(4)}))])
                if isinstance(message, StopAsked):
                    if answers_the_stop:
                        socket.send_multipart([sender, encode_message(Status(body={"ledger": ledger(5)}))])
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize(("answers_the_stop", "trained"), [(False, 4), (True, 5)])
def test_the_last_that_was_heard_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], answers_the_stop: bool, trained: int) -> None:
    with a_broker_that_goes_at_once(tmp_path, answers_the_stop=answers_the_stop):
        assert stop(str(tmp_path)) == 0
    assert f"the run is stopped: 9 issued · {9 - trained} in flight · {trained} trained" in capsys.readouterr().out


def test_what_the_broker_wrote_at_the_end_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"ended": "stopped", "ledger": {**ledger(9), "closed": True}}))
    with a_broker_that_goes_at_once(tmp_path, answers_the_stop=True):
        assert stop(str(tmp_path)) == 0
    assert "9 issued · 0 in flight · 9 trained" in capsys.readouterr().out


def test_a_summary_that_cannot_be_read_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text('{"ended": "stop')
    with a_broker_that_goes_at_once(tmp_path, answers_the_stop=False):
        assert stop(str(tmp_path)) == 0
    assert "9 issued · 5 in flight · 4 trained" in capsys.readouterr().out
