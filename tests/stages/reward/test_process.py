"""What a verifier starts ends with its worker, whether that is killed or ends by itself."""

import psutil
import pytest

from stages.reward.process import WorkerProcess
from tests.skeleton.waiting import until

SLEEPS = "sleep 1000 & exec sleep 1000"
ENDS = "sleep 1000 & read line"


@pytest.mark.parametrize("script", [SLEEPS, ENDS])
def test_what_a_worker_started_does_not_outlive_it(script: str) -> None:
    worker = WorkerProcess(("sh", "-c", script))
    started: list[psutil.Process] = []

    def has_started() -> bool:
        started[:] = psutil.Process(worker.pid).children()
        return bool(started)

    until(has_started, "the worker has started something", lambda: "")
    if script == ENDS:
        worker._child.stdin.close()  # type: ignore[union-attr]
        until(lambda: worker.ended() is not None, "the worker ends", lambda: "")
    worker.kill()
    until(lambda: not started[0].is_running() or started[0].status() == psutil.STATUS_ZOMBIE, "what it started is gone", lambda: "")
